"use strict";
// Memory over execution order.

/** Bytes of live activations by step: the largest of each span, with the peak and its limit. */
function memoryPlot(figure, memory, limit, width) {
  const points = memorySpans(memory);
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
    x: stepAxis(end, width),
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
  fill(figure, caption, [drawing, ownersPlot(memory, end, width)]);
}

/** Spans of steps, each with the step at which most of its bytes live. */
function memorySpans(memory) {
  return memory.points.map(([first, last, at, bytes], index) => {
    const [scope, op] = memory.names[index];
    return { first, last, at, bytes: Number(bytes), scope, op };
  });
}

/** An axis of whole steps. */
function stepAxis(end, width) {
  return {
    label: "step in execution order",
    domain: [0, end],
    tickFormat: "~s",
    ticks: d3.ticks(0, end, width / 80).filter(Number.isInteger),
  };
}

const MOST_OWNERS = 6; // drawn; the table below names more
const ROW = 34; // px: a line of words, and a bar below it

/** When the largest of what lives at the peak is alive: bars under the same steps. */
function ownersPlot(memory, end, width) {
  const owners = memory.owners.slice(0, MOST_OWNERS).map((owner, at) => ({ ...owner, at }));
  const middle = memory.step + 0.5;
  return Plot.plot({
    width,
    height: ROW * owners.length + 8,
    marginLeft: 64,
    marginRight: 16,
    marginTop: 4,
    marginBottom: 4,
    style: STYLE,
    ariaLabel: "Lifetimes of what lives at the peak",
    ariaDescription: owners
      .map((owner) => `${ownerName(owner, 60)}, ${lifetime(owner)}`)
      .join("; "),
    x: { axis: null, domain: [0, end] },
    y: { axis: null, domain: [0, owners.length || 1], reverse: true },
    marks: [
      Plot.ruleX([middle], { stroke: "var(--text)", strokeDasharray: "2 3" }),
      [false, true].map((atEdge) => ownerLabels(owners, memory, { end, width, atEdge })),
      Plot.rect(owners, {
        x1: "first",
        x2: (owner) => owner.last + 1,
        y1: (owner) => owner.at + 0.55,
        y2: (owner) => owner.at + 0.85,
        fill: "var(--series)",
        stroke: "var(--series)", // a single step of many is seen too
        rx: 2,
      }),
    ],
  });
}

/** Names above the bars, from a bar's start on; up to the edge where they would not end before. */
function ownerLabels(owners, memory, { end, width, atEdge }) {
  const room = width - 80; // px between the margins
  const letters = Math.min(60, Math.floor(room / 6.6) - 18);
  const words = (owner) =>
    `${ownerName(owner, letters)}  ${rounded(owner.bytes, "B")}, ${percent(owner.bytes, memory.peak)}`;
  const isLong = (owner) => (owner.first / end) * room + 6.6 * words(owner).length > room;
  return Plot.text(
    owners.filter((owner) => isLong(owner) === atEdge),
    {
      x: atEdge ? end : "first",
      y: (owner) => owner.at + 0.28,
      text: words,
      textAnchor: atEdge ? "end" : "start",
      ...HALO,
    },
  );
}

function ownerName(owner, letters) {
  return owner.op ? shortened(layerName(owner.scope), letters) : "input of the model";
}

/** The steps during which something is alive. */
function lifetime({ first, last }) {
  return first === last ? `step ${first}` : `steps ${first} to ${last}`;
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
