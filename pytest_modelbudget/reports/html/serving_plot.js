"use strict";
// What a language model needs in service, by the tokens that its cache holds.

const SERVED_PARTS = [
  ["weights", "var(--c1)"],
  ["cache", "var(--c2)"],
  ["activations", "var(--c3)"],
  ["reserve", "var(--muted)"],
];

/** Bytes of each part, one above the other, at some contexts, with the device's memory. */
function servingPlot(figure, serving, width) {
  const points = serving ? unpacked(serving.points) : [];
  figure.parentElement.hidden = points.length < 2;
  if (figure.parentElement.hidden) return;
  const parts = SERVED_PARTS.filter(([name]) => points.some((point) => Number(point[name] ?? 0)));
  const layers = stackedParts(points, parts);
  const room = serving.room === null ? null : Number(serving.room);
  const tops = points.map((point) => ({ ...point, total: totalBytes(point, parts) }));
  const most = d3.max(tops, (point) => point.total);
  const isDrawn = room !== null && room <= 3 * most;
  const caption = servingCaption(tops, serving, room !== null && !isDrawn ? room : null);
  const ends = d3.extent(points, (point) => point.context);
  const drawing = Plot.plot({
    width,
    height: width < NARROW ? 250 : 320,
    marginLeft: 64,
    marginTop: 34,
    marginRight: 16,
    marginBottom: 38,
    style: STYLE,
    ariaLabel: "Memory in service over context",
    ariaDescription: caption,
    x: {
      label: "tokens of each sequence",
      domain: ends,
      tickFormat: "~s",
      ticks: Math.max(2, Math.floor(width / 110)),
    },
    y: {
      label: "bytes",
      grid: true,
      ticks: 5,
      tickFormat: (value) => rounded(value, "B"),
      domain: [0, Math.max(most, isDrawn ? room : 0) * 1.08],
    },
    color: { domain: parts.map(([name]) => name), range: parts.map(([, colour]) => colour) },
    marks: [
      Plot.areaY(layers, {
        x: "context",
        y1: "below",
        y2: "above",
        z: "part",
        fill: "part",
        fillOpacity: 0.75,
      }),
      Plot.ruleX([serving.context], { stroke: "var(--text)", strokeDasharray: "2 3" }),
      Plot.dot(tops, { x: "context", y: "total", r: 3, fill: "var(--text)" }),
      isDrawn ? roomMarks(room, ends[0]) : [],
      Plot.ruleY([0], { stroke: "var(--muted)" }),
      Plot.tip(tops, Plot.pointerX(servingTip(parts))),
    ],
  });
  fill(figure, caption, [drawing], parts);
}

function totalBytes(point, parts) {
  return d3.sum(parts, ([name]) => Number(point[name] ?? 0));
}

/** Where each part begins and ends at each context. */
function stackedParts(points, parts) {
  return points.flatMap((point) => {
    let below = 0;
    return parts.map(([part]) => {
      const above = below + Number(point[part] ?? 0);
      const layer = { context: point.context, part, below, above };
      below = above;
      return layer;
    });
  });
}

/** The device's memory, its name above the line. */
function roomMarks(room, first) {
  return [
    Plot.ruleY([room], { stroke: "var(--over-bar)", strokeDasharray: "5 4", strokeWidth: 2 }),
    Plot.text([room], {
      x: first,
      y: (value) => value,
      text: (value) => `memory ${rounded(value, "B")}`,
      textAnchor: "start",
      dx: 4,
      dy: -9,
      ...HALO,
      fill: "var(--over)",
    }),
  ];
}

function servingCaption(tops, serving, farRoom) {
  const own = tops.find((point) => point.context === serving.context);
  const last = tops.at(-1);
  return [
    own
      ? `After ${counted(own.context)} tokens, the dotted line, service takes ${rounded(own.total, "B")}.`
      : "",
    last === own
      ? ""
      : `After ${counted(last.context)} tokens it takes ${rounded(last.total, "B")}.`,
    "Dots are measured; between them lines are straight.",
    farRoom === null ? "" : `The memory of ${rounded(farRoom, "B")} is far above.`,
  ]
    .filter(Boolean)
    .join(" ");
}

function servingTip(parts) {
  return {
    ...TIP,
    x: "context",
    y: "total",
    title: (point) =>
      [
        `${counted(point.context)} tokens`,
        ...parts.map(([name]) => `${name} ${counted(point[name] ?? 0)} B`),
        `together ${counted(point.total)} B`,
      ].join("\n"),
  };
}
