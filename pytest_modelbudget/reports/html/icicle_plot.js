"use strict";
// The modules of a model as an icicle: each as wide as its part of all parameters, or of all MACs, below what holds it.

const LEVEL = 24; // px
const THINNEST = 2; // px: what is narrower is part of its container, and is not drawn

/** Rectangles from the model at the top down to its layers; figure is "params" or "macs". */
function iciclePlot(place, layers, key, width) {
  const noun = { params: "parameters", macs: "MACs" }[key];
  const root = tree(unpacked(layers.rows));
  const whole = Number(root.sums[key]);
  const pieces = whole ? [...placed(root, key, { from: 0, depth: 0 }, THINNEST / width)] : [];
  const depth = d3.max(pieces, (piece) => piece.depth) ?? 0;
  const caption = whole
    ? `All ${counted(root.sums[key])} ${noun} by module: what stands below another is inside of it, and as wide as its part. ` +
      `${several(pieces.length, "module")} drawn; the table below has every layer.`
    : `There are no ${noun}.`;
  if (!whole) return fill(place, caption, []);
  const drawing = Plot.plot({
    width,
    height: (depth + 1) * LEVEL,
    margin: 0,
    style: STYLE,
    ariaLabel: `${noun} by module`,
    ariaDescription: caption,
    x: { axis: null, domain: [0, 1] },
    y: { axis: null, domain: [depth + 1, 0] },
    marks: [
      Plot.rect(pieces, {
        x1: "from",
        x2: "to",
        y1: "depth",
        y2: (piece) => piece.depth + 1,
        fill: (piece) => (piece.isLeaf ? "var(--series-soft)" : "var(--track)"),
        stroke: "var(--surface)",
        className: "pieces",
      }),
      nameMarks(
        pieces.map(({ from, to, depth, name }) => ({
          name,
          x: (from + to) / 2,
          y: depth + 0.5,
          wide: (to - from) * width,
          high: LEVEL,
        })),
      ),
    ],
  });
  fill(place, caption, [drawing]);
  const words = pieces.map(
    ({ node, path }) =>
      `${path}: ${counted(node.sums[key])} ${noun}, ${percent(node.sums[key], whole)} of all`,
  );
  explore(place, drawing, words, "module");
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
