"use strict";
// Memory over execution order.

/** Bytes of live activations by step: the largest of each span, with the peak and its limit. */
function memoryPlot(figure, memory, limit, width) {
  const points = memory.points.map(([first, last, at, bytes], index) => {
    const [scope, op] = memory.names[index];
    return { first, last, at, bytes: Number(bytes), scope, op };
  });
  const peak = Number(memory.peak);
  const isDrawn = limit !== null && limit <= 3 * peak;
  const end = points.at(-1).last + 1;
  const caption = memoryCaption(points, memory, limit !== null && !isDrawn ? limit : null);
  const drawing = Plot.plot({
    width,
    height: width < NARROW ? 230 : 280,
    marginLeft: 64,
    marginTop: 34,
    marginRight: 16,
    marginBottom: 38,
    style: STYLE,
    ariaLabel: "Memory over execution order",
    ariaDescription: caption,
    x: {
      label: "step in execution order",
      domain: [0, end],
      tickFormat: "~s",
      ticks: d3.ticks(0, end, width / 80).filter(Number.isInteger),
    },
    y: {
      label: "bytes alive",
      grid: true,
      ticks: 5,
      tickFormat: (value) => rounded(value, "B"),
      domain: [0, Math.max(peak, isDrawn ? limit : 0) * 1.05 || 1],
    },
    marks: [
      aliveMarks(points, end),
      isDrawn ? limitMarks(limit, peak, end, memory.step < end / 2) : [],
      peakMarks(peak, memory.step + 0.5, end),
      Plot.tip(points, Plot.pointerX(memoryTip())),
    ],
  });
  fill(figure, caption, [drawing]);
}

function memoryCaption(points, memory, farLimit) {
  const [scope, op] = memory.names[points.findIndex((each) => each.at === memory.step)];
  const during = `during ${op || "the only step"} in ${layerName(scope)}`;
  const last = Math.max(memory.steps - 1, 0);
  return [
    `At most ${counted(memory.peak)} B of activations live at once, ${during} (step ${memory.step}; the last is ${last}).`,
    "Weights are not in it.",
    points.some((each) => each.first !== each.last)
      ? "Each point is the most of several steps."
      : "",
    memory.complete ? "" : "Some sizes are not known: everything is a lower bound.",
    farLimit === null ? "" : `The limit of ${rounded(farLimit, "B")} is far above.`,
  ]
    .filter(Boolean)
    .join(" ");
}

/** The area of all that lives; a step's bytes hold until the next. */
function aliveMarks(points, end) {
  const outline = points.map((each) => ({ x: each.first, y: each.bytes }));
  outline.push({ x: end, y: points.at(-1).bytes });
  const shape = { x: "x", y: "y", curve: "step-after" };
  return [
    Plot.areaY(outline, { ...shape, fill: "var(--series-soft)" }),
    Plot.lineY(outline, { ...shape, stroke: "var(--series)", strokeWidth: 1.5 }),
    Plot.ruleY([0], { stroke: "var(--muted)" }),
  ];
}

/** The limit, its name at the end that is away from the peak's. */
function limitMarks(limit, peak, end, atRight) {
  return [
    Plot.ruleY([limit], { stroke: "var(--over-bar)", strokeDasharray: "5 4" }),
    Plot.text([limit], {
      x: () => (atRight ? end : 0),
      y: (value) => value,
      text: (value) => `limit ${rounded(value, "B")}`,
      textAnchor: atRight ? "end" : "start",
      dy: limit < peak ? 10 : -9,
      ...HALO,
      fill: "var(--over)",
    }),
  ];
}

function peakMarks(peak, middle, end) {
  const place = middle / end;
  return [
    Plot.ruleX([middle], { y: peak, stroke: "var(--text)", strokeDasharray: "2 3" }),
    Plot.dot([[middle, peak]], { fill: "var(--text)", r: 4 }),
    Plot.text([[middle, peak]], {
      text: () => `peak ${rounded(peak, "B")}`,
      textAnchor: place < 0.35 ? "start" : place > 0.65 ? "end" : "middle",
      dy: -13,
      fontWeight: 600,
      ...HALO,
    }),
  ];
}

function memoryTip() {
  const when = ({ first, last, at }) =>
    first === last ? `step ${first}` : `steps ${first} to ${last}, most at ${at}`;
  return {
    ...TIP,
    x: (each) => (each.first + each.last + 1) / 2,
    y: "bytes",
    title: (each) =>
      [
        when(each),
        shortened(layerName(each.scope), 48),
        each.op,
        `${counted(each.bytes)} B alive`,
      ].join("\n"),
  };
}
