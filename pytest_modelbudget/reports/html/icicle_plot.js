"use strict";
// The modules of a model as an icicle: each as wide as its part of a number, below its container, coloured by change.

const LEVEL = 24; // px
const THINNEST = 2; // px: what is narrower is part of its container, and is not drawn
const NUMBERS = {
  params: { noun: "parameters", unit: "", locked: "params" },
  macs: { noun: "MACs", unit: "", locked: "macs" },
  peak: { noun: "bytes at the peak of memory", unit: " B", locked: "peak_activation" },
  traffic: { noun: "bytes moved", unit: " B", locked: "bandwidth" },
};
const CHANGES = {
  grew: { sign: "▲ ", colour: "var(--grew)", words: "▲ grew since the base" },
  shrank: { sign: "▼ ", colour: "var(--shrank)", words: "▼ shrank" },
  same: { sign: "", colour: "var(--series-soft)", words: "unchanged" },
};

/** Rectangles from the model at the top down to its layers; key is one of NUMBERS. */
function iciclePlot(place, { layers, memory, base = {} }, key, width) {
  const { noun, unit, locked } = NUMBERS[key];
  const root = tree(unpacked(layers.rows));
  if (key === "peak") root.sums.peak = BigInt(memory.peak); // with the model's inputs, which no layer made
  const whole = Number(root.sums[key]);
  const pieces = whole ? [...placed(root, key, { from: 0, depth: 0 }, THINNEST / width)] : [];
  if (!whole) return fill(place, `There are no ${noun}.`, []);
  const change = changes(base[locked], key);
  for (const piece of pieces) piece.change = change(piece.node);
  const has = (kind) => pieces.some((piece) => piece.change?.kind === kind);
  const depth = d3.max(pieces, (piece) => piece.depth);
  const caption = [
    `All ${counted(root.sums[key])} ${noun} by module: below a module is what it contains, as wide as its part.`,
    key === "peak" ? "The model's inputs are not drawn." : "",
    base[locked] ? "" : `The base has no ${locked} of this model, so that no change is shown.`,
    `${several(pieces.length, "module")} drawn; the layer table has every layer.`,
  ];
  const drawing = Plot.plot({
    width,
    height: (depth + 1) * LEVEL,
    margin: 0,
    style: STYLE,
    ariaLabel: `${noun} by module`,
    ariaDescription: caption.filter(Boolean).join(" "),
    x: { axis: null, domain: [0, 1] },
    y: { axis: null, domain: [depth + 1, 0] },
    marks: [
      Plot.rect(pieces, {
        x1: "from",
        x2: "to",
        y1: "depth",
        y2: (piece) => piece.depth + 1,
        fill: ({ change, isLeaf }) =>
          change && change.kind !== "same"
            ? CHANGES[change.kind].colour
            : isLeaf
              ? "var(--series-soft)"
              : "var(--track)",
        stroke: "var(--surface)",
        className: "pieces",
      }),
      nameMarks(
        pieces.map(({ from, to, depth, name, change }) => ({
          name: (change ? CHANGES[change.kind].sign : "") + name,
          x: (from + to) / 2,
          y: depth + 0.5,
          wide: (to - from) * width,
          high: LEVEL,
        })),
      ),
    ],
  });
  const legend = Object.keys(CHANGES).filter(has);
  const colours = legend.map((kind) => [CHANGES[kind].words, CHANGES[kind].colour]);
  fill(place, caption.filter(Boolean).join(" "), [drawing], colours);
  const words = pieces.map(({ node, path, change }) => {
    const amount = `${counted(node.sums[key])}${unit || ` ${noun}`}`;
    return `${path}: ${amount}, ${percent(node.sums[key], whole)} of all${change?.words ?? ""}`;
  });
  explore(place, drawing, words, "module");
}

/** How a module's number changed since the base: a function of its node; it returns null where that is not known. */
function changes(base, key) {
  if (!base) return () => null;
  const [own, below] = [new Map(), new Map()];
  const add = (sums, scope, value) => sums.set(scope, (sums.get(scope) ?? 0n) + value);
  for (const [scope, value] of Object.entries(base.layers)) {
    const names = scope.split(".");
    add(own, scope, BigInt(value));
    const above = names.map((_, at) => names.slice(0, at + 1).join("."));
    for (const path of new Set(["", ...above])) add(below, path, BigInt(value));
  }
  return ({ row, sums }) => {
    const before = (isOwn(row) ? own : below).get(row.scope);
    if (base.cut && before === undefined) return null;
    const delta = sums[key] - (before ?? 0n);
    if (!delta) return { kind: "same", words: ", unchanged since the base" };
    const part = before ? `, ${delta > 0 ? "+" : "-"}${percent(delta > 0 ? delta : -delta, before)}` : ", new";
    const amount = `${delta > 0 ? "+" : ""}${counted(delta)}`;
    return { kind: delta > 0 ? "grew" : "shrank", words: `; ${amount} since the base${part}` };
  };
}

/** A node's rectangle, then those of all that is wide enough below it; shares are of the whole model. */
function* placed(node, key, { from, depth, whole = Number(node.sums[key]) }, thinnest) {
  const share = Number(node.sums[key]) / whole;
  if (share < thinnest) return;
  const path = nameAlone(node.row);
  const name = depth ? nameInTree(node.row) : path;
  yield { node, path, name, depth, from, to: from + share, isLeaf: !node.children.length };
  let start = from;
  for (const child of node.children) {
    yield* placed(child, key, { from: start, depth: depth + 1, whole }, thinnest);
    start += Number(child.sums[key]) / whole;
  }
}
