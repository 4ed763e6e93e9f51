"use strict";
// MACs, weight bytes and traffic by parts of the model.

const PARTS = [
  ["macs", "MACs"],
  ["weight_bytes", "weight bytes"],
  ["traffic", "bytes moved"],
];
const SUMMED = ["params", "output_bytes", "peak", ...PARTS.map(([key]) => key)];

/** MACs, weight bytes and traffic of the model's parts, in execution order. */
function layersPlot(figure, layers, width) {
  const isNarrow = width < NARROW;
  const root = tree(unpacked(layers.rows));
  const parts = unfolded(root, isNarrow ? 14 : 24);
  const margin = leftMargin(
    parts.map((part) => part.name),
    width,
  );
  const names = new Map(parts.map((part, at) => [at, margin.label(part.name)]));
  const bars = parts.flatMap((part, at) => partBars(part, at, root.sums));
  const caption = layersCaption(root.sums);
  const metrics = PARTS.map(([, metric]) => metric);
  const groups = isNarrow ? metrics.map((metric) => [metric]) : [metrics];
  const drawings = groups.map((group) => {
    const shown = bars.filter((bar) => group.includes(bar.metric));
    return barsPlot(shown, group, names, { width, marginLeft: margin.width, caption });
  });
  fill(figure, caption, drawings);
}

function layersCaption({ macs, weight_bytes, traffic }) {
  return [
    `Each part's share of all MACs (${rounded(macs)}),`,
    `weight bytes (${rounded(weight_bytes, "B")}) and bytes moved (${rounded(traffic, "B")}),`,
    "in execution order. The largest containers are unfolded; the table below has every layer.",
  ].join(" ");
}

/** One bar a metric for a part of the model. */
function partBars({ name, sums }, at, wholes) {
  return PARTS.map(([key, metric]) => {
    const part = Number(wholes[key]) ? Number(sums[key]) / Number(wholes[key]) : 0;
    return { at, name, metric, value: String(sums[key]), part };
  });
}

/** The rows as the tree that their depths describe, each with the sums of all that lies below. */
function tree(rows) {
  const open = [];
  for (const [at, row] of rows.entries()) {
    const node = {
      row,
      at,
      children: [],
      layers: row.params === null ? 0 : 1,
      sums: Object.fromEntries(SUMMED.map((key) => [key, BigInt(row[key] ?? 0)])),
    };
    open.length = row.depth;
    for (const above of open) {
      above.layers += node.layers;
      for (const key of SUMMED) above.sums[key] += node.sums[key];
    }
    open.at(-1)?.children.push(node);
    open.push(node);
  }
  return open[0];
}

/** So many parts of the tree at most, which make up all of it: the largest are taken apart. */
function unfolded(root, most) {
  const share = ({ sums }) =>
    d3.max(PARTS, ([key]) => Number(sums[key]) / (Number(root.sums[key]) || 1));
  let parts = [root];
  for (;;) {
    const fitting = parts.filter(
      (part) => part.children.length && parts.length - 1 + part.children.length <= most,
    );
    if (!fitting.length) break;
    const largest = d3.greatest(fitting, share);
    parts = parts.flatMap((part) => (part === largest ? part.children : [part]));
  }
  parts = parts.filter((part) => share(part) > 0);
  const [main] = parts.filter((part) => part.children.length && share(part) > 1 / 2);
  if (main) {
    const left = most - parts.length; // too many children to fit, and most of the model
    parts = parts.flatMap((part) => (part === main ? abridged(main.children, left, share) : [part]));
  }
  return parts
    .filter((part) => share(part) > 0)
    .map((part) => ({ ...part, name: part.name ?? barName(part, most) }));
}

/** The largest of many, and the sum of the others. */
function abridged(nodes, most, share) {
  const kept = new Set([...nodes].sort((a, b) => share(b) - share(a)).slice(0, most));
  const others = nodes.filter((node) => !kept.has(node));
  const sums = Object.fromEntries(
    PARTS.map(([key]) => [key, others.reduce((sum, node) => sum + node.sums[key], 0n)]),
  );
  const rest = others.length ? [{ name: `${others.length} smaller`, sums, children: [] }] : [];
  return [...nodes.filter((node) => kept.has(node)), ...rest];
}

function barName({ row, children, layers }, most) {
  if (row.scope === null) return row.type;
  const below = most < 20 ? layers : several(layers, "layer");
  if (children.length) return `${layerName(row.scope)} (${below})`;
  return nameAlone(row);
}

const PERCENT = { textAnchor: "start", dx: 4, fontSize: 11, fill: "var(--muted)" };

/** Bars from left to right for each part, one column a metric. */
function barsPlot(bars, metrics, names, { width, marginLeft, caption }) {
  const place = { fx: "metric", y: "at", x: "part" };
  const title = (bar) => `${shortened(bar.name, 48)}\n${counted(bar.value)} ${bar.metric}`;
  return Plot.plot({
    width,
    height: 38 + 20 * names.size,
    marginLeft,
    marginRight: 12,
    marginTop: 30,
    marginBottom: 8,
    style: STYLE,
    ariaLabel: `Parts of ${metrics.join(", ")} by layer`,
    ariaDescription: caption,
    fx: { domain: metrics, label: null, padding: 0.08, axis: "top" },
    x: {
      axis: null,
      domain: [0, d3.max(bars, (bar) => bar.part) * (metrics.length > 1 ? 1.35 : 1.2) || 1],
    },
    y: {
      domain: [...names.keys()],
      tickFormat: (at) => names.get(at),
      label: null,
      tickSize: 0,
      padding: 0.25,
    },
    marks: [
      Plot.barX(bars, { ...place, fill: "var(--series)", rx2: 2 }),
      Plot.text(
        bars.filter((bar) => bar.part > 0),
        { ...place, ...PERCENT, text: (bar) => percent(bar.part, 1) },
      ),
      Plot.ruleX([0], { stroke: "var(--line)" }),
      Plot.tip(bars, Plot.pointer({ ...place, ...TIP, title })),
    ],
  });
}
