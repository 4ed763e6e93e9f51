"use strict";
// How far a transform's outputs are from the original's.

const BOUND = 1e-10; // what exact algebra may differ by, relative, in float64
const NOTHING = 1e-17; // where an error of zero stands: it has no place on a logarithmic axis
const MOST_OUTPUTS = 40;

/** Relative errors in float64 by output and family of inputs, against the bound. */
function divergencePlot(figure, outputs, width) {
  const errors = outputs.slice(0, MOST_OUTPUTS).map(([name, text]) => {
    const error = Number(text);
    return { name, text, x: Math.max(error, NOTHING), isOver: !(error <= BOUND) };
  });
  const finite = errors.filter((each) => Number.isFinite(each.x));
  const most = d3.max(finite, (each) => each.x) ?? NOTHING;
  const margin = leftMargin(
    errors.map((each) => each.name),
    width,
  );
  const caption = divergenceCaption(errors, outputs.length);
  const colour = (each) => (each.isOver ? "var(--over-bar)" : "var(--within-bar)");
  const drawing = Plot.plot({
    width,
    height: 66 + 20 * errors.length,
    marginLeft: margin.width,
    marginRight: 24,
    marginTop: 28,
    marginBottom: 38,
    style: STYLE,
    ariaLabel: "Divergence",
    ariaDescription: caption,
    x: {
      type: "log",
      domain: [NOTHING, Math.max(1e-8, most * 10)],
      label: "relative error",
      grid: true,
      ticks: width < NARROW ? 4 : 8,
      tickFormat: (error) => error.toExponential(0),
    },
    y: {
      domain: errors.map((each) => each.name),
      tickFormat: margin.label,
      label: null,
      tickSize: 0,
    },
    marks: [
      Plot.ruleX([BOUND], { stroke: "var(--over-bar)", strokeDasharray: "5 4" }),
      Plot.text([`bound ${BOUND}`], {
        x: BOUND,
        text: (words) => words,
        frameAnchor: "top",
        dy: -12,
        fill: "var(--over)",
      }),
      Plot.dot(finite, {
        x: "x",
        y: "name",
        r: 5,
        fill: colour,
        stroke: colour,
        symbol: (each) => (each.isOver ? "times" : "circle"),
      }),
      Plot.tip(
        finite,
        Plot.pointer({ x: "x", y: "name", ...TIP, title: ({ name, text }) => `${name}\n${text}` }),
      ),
    ],
  });
  fill(figure, caption, [drawing]);
}

function divergenceCaption(errors, all) {
  const over = errors.filter((each) => each.isOver).length;
  const told = over ? `${over} of ${errors.length} above` : "none above";
  const left = all > errors.length ? ` ${all - errors.length} more are in the table.` : "";
  return `Relative error of each output in float64: ${told} ${BOUND}.${left}`;
}
