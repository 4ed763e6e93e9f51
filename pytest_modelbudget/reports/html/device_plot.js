"use strict";
// A device's figures: operations under its own rates and bandwidths, and its array of multipliers in use.

/** Operations under the device's lines, each at the memory that it waits longest for. */
function deviceRooflinePlot(figure, roofline, width) {
  const points = unpacked(roofline.points).map(placedPoint);
  const drawn = points.filter((point) => point.macs > 0 && point.bytes > 0 && point.seconds > 0);
  const caption = deviceCaption(roofline, points, drawn);
  if (!drawn.length) return fill(figure, caption, []);
  const lines = Object.entries(roofline.bandwidths);
  const rates = ratesByHeight(roofline.rates);
  const domain = intensities(drawn, roofline, lines);
  const tops = [d3.max(rates, ([rate]) => rate), d3.min(drawn, (point) => point.roof)];
  const colour = sideColours(roofline);
  const whole = d3.sum(Object.values(roofline.seconds));
  const slopes = lines.map(([name, bandwidth]) =>
    Plot.line([domain[0], tops[0] / bandwidth], {
      x: (x) => x,
      y: (x) => bandwidth * x,
      stroke: colour(name),
      strokeWidth: 1.5,
      clip: true,
    }),
  );
  const drawing = dotsUnderRoofs(drawn, (point) => colour(point.binds), {
    width,
    height: width < NARROW ? 300 : 380,
    ariaLabel: "Roofline of the device",
    ariaDescription: caption,
    x: { ...logarithmic(domain), label: "MACs per byte moved" },
    y: {
      ...logarithmic([tops[1] / 2, tops[0] * 2.2]),
      label: "MAC/s at best",
      tickFormat: (y) => rounded(y, "MAC/s"),
    },
    whole,
    roofs: [slopes, rateMarks(rates, domain, drawn)],
    ridge: ridgeOf(drawn, roofline),
    tip: deviceTip(whole),
  });
  fill(figure, caption, [drawing], colour.key);
}

/** An operation where it stands: on the line of its slowest memory, or as high as its products allow. */
function placedPoint(point) {
  const [macs, bytes, time] = [Number(point.macs), Number(point.bytes), point.seconds];
  const name = layerName(point.scope);
  return { ...point, name, macs, bytes, time, intensity: macs / bytes, roof: macs / time };
}

/** Rates from the largest on, types of one rate together. */
function ratesByHeight(rates) {
  const groups = d3.rollups(
    Object.entries(rates),
    (group) => group.map(([type]) => type).join(", "),
    ([, rate]) => rate,
  );
  return groups.sort(([a], [b]) => b - a);
}

/** All intensities, and each place where a memory's line meets a rate that is used. */
function intensities(drawn, roofline, lines) {
  const rates = new Set(drawn.map((point) => roofline.rates[point.dtype]));
  const ridges = [...rates].flatMap((rate) => lines.map(([, bandwidth]) => rate / bandwidth));
  const [low, high] = d3.extent([...ridges, ...drawn.map((point) => point.intensity)]);
  return [low / 2, high * 2];
}

/** Where most of what is drawn goes from memory to compute. */
function ridgeOf(drawn, roofline) {
  const longest = d3.greatest(drawn, (point) => point.time);
  return roofline.rates[longest.dtype] / roofline.bandwidths[longest.memory];
}

/** A line for each rate; those of types that nothing multiplies are dashed. */
function rateMarks(rates, [low], drawn) {
  const used = new Set(drawn.map((point) => point.dtype));
  const isUsed = ([, types]) => types.split(", ").some((type) => used.has(type));
  const stroke = { stroke: "var(--muted)", y: ([rate]) => rate };
  return [
    Plot.ruleY(rates.filter(isUsed), { ...stroke, strokeWidth: 2 }),
    Plot.ruleY(
      rates.filter((rate) => !isUsed(rate)),
      { ...stroke, strokeDasharray: "2 4" },
    ),
    Plot.text(rates, {
      x: () => low,
      y: ([rate]) => rate,
      text: ([rate, types]) => `${types} ${rounded(rate, "MAC/s")}`,
      textAnchor: "start",
      dx: 4,
      dy: -9,
      ...HALO,
    }),
  ];
}

/** Colours of the sides that bind, and the key to them with the device's figures. */
function sideColours({ bandwidths }) {
  const sides = ["compute", ...Object.keys(bandwidths)];
  const colour = (side) => `var(--c${(sides.indexOf(side) % 7) + 1})`;
  const words = (side) =>
    side === "compute" ? "bound by compute" : `by ${side}, ${rounded(bandwidths[side], "B/s")}`;
  colour.key = sides.map((side) => [words(side), colour(side)]);
  return colour;
}

function deviceCaption(roofline, points, drawn) {
  const whole = d3.sum(Object.values(roofline.seconds));
  const sides = Object.entries(roofline.seconds)
    .filter(([, time]) => time > 0)
    .sort(([, a], [, b]) => b - a)
    .map(([side, time]) => `${side} decides ${percent(time, whole)}`);
  const { count, seconds: waiting } = roofline.still;
  return [
    points.length
      ? `At best ${seconds(whole)} on this device, one operation after another: ${sides.join(", ")}.`
      : "No operation's time is bounded.",
    drawn.length
      ? "Each operation stands at the memory that it waits longest for; a larger dot takes longer."
      : "",
    count
      ? `What multiplies nothing (${several(count, "operation")}, ${seconds(waiting)}) is in that time, and not drawn.`
      : "",
    roofline.rest
      ? `Nor are the ${several(roofline.rest, "operation")} that take least.`
      : "",
    ...roofline.missing.map(([why, number]) => `Without a bound: ${several(number, "operation")} (${why}).`),
  ]
    .filter(Boolean)
    .join(" ");
}

function deviceTip(whole) {
  return (point) =>
    [
      shortened(point.name, 48),
      `${point.kind}, ${point.dtype}`,
      `${rounded(point.macs, "MAC")}, ${rounded(point.bytes, "B")} through ${point.memory}`,
      `${rounded(point.intensity)} MAC/B`,
      `${seconds(point.time)} at best, ${percent(point.time, whole)} of all, by ${point.binds}`,
    ].join("\n");
}

/** The operations that take longest on the device, and what binds them. */
function deviceTable(place, roofline) {
  const whole = d3.sum(Object.values(roofline.seconds));
  const longest = unpacked(roofline.points)
    .sort((a, b) => b.seconds - a.seconds)
    .slice(0, 10);
  const headings = ["Longest at best", "Kind", "MACs", "Type", "At best", "Part", "Bound by"];
  const rows = longest.map((point) => [
    layerName(point.scope),
    point.kind,
    counted(point.macs),
    point.dtype || "–",
    seconds(point.seconds),
    percent(point.seconds, whole),
    point.binds,
  ]);
  if (rows.length)
    place.replaceChildren(
      lines("Operations that take longest at best on the device", headings, rows, [2, 4, 5]),
    );
}

/** The array over time: cycles across, how much of it works up; what is filled is work. */
function arrayPlot(figure, array, width) {
  let first = 0;
  const [rows, columns] = array.cells;
  const pieces = unpacked(array.rows).map((row) => {
    const cycles = Number(row.cycles);
    const used = Number(row.macs) / (cycles * rows * columns || 1);
    first += cycles;
    return { ...row, name: layerName(row.scope), cycles, used, x1: first - cycles, x2: first };
  });
  const most = d3.max(pieces, (piece) => piece.used);
  const full = most > 0.2 ? 1 : most * 1.3 || 1; // what is hardly used is seen all the same
  const caption = arrayCaption(array);
  if (!first) return fill(figure, caption, []);
  const [height, left, right, top, bottom] = [width < NARROW ? 230 : 280, 64, 16, 26, 38];
  const across = (width - left - right) / first;
  const drawing = Plot.plot({
    width,
    height,
    marginLeft: left,
    marginRight: right,
    marginTop: top,
    marginBottom: bottom,
    style: STYLE,
    ariaLabel: "Utilisation of the array over its cycles",
    ariaDescription: caption,
    x: { label: "cycles, in execution order", domain: [0, first], tickFormat: "~s", ticks: width / 100 },
    y: { label: "utilisation", domain: [0, full], ticks: 5, tickFormat: "~%", grid: true },
    marks: [
      Plot.rect(pieces, {
        x1: "x1",
        x2: "x2",
        y1: 0,
        y2: "used",
        fill: "var(--series-soft)",
        stroke: "var(--series)",
        insetRight: 0.5,
      }),
      Plot.ruleY([array.used], { stroke: "var(--text)", strokeDasharray: "2 3" }),
      Plot.rect(pieces, { x1: "x1", x2: "x2", y1: 0, y2: full, fill: "transparent", className: "pieces" }),
      nameMarks(
        pieces.map((piece) => ({
          name: piece.name,
          x: (piece.x1 + piece.x2) / 2,
          y: nameHeight(piece.used, array.used, full),
          wide: (piece.x2 - piece.x1) * across,
          high: 18,
        })),
      ),
    ],
  });
  fill(figure, caption, [drawing]);
  explore(figure, drawing, pieces.map(arrayWords), "layer");
}

/** A name stands on its layer, above the dashed line where that would run through it; in it where it is full. */
function nameHeight(used, average, full) {
  const line = 0.055 * full;
  if (used + 2 * line > full) return used - line;
  return (average > used && average < used + 2 * line ? average : used) + line;
}

/** A part of the array in three digits: what is hardly used, too. */
function usedPart(part) {
  return `${d3.format(".3~r")(100 * part)}%`;
}

function arrayCaption({ cells: [rows, columns], dataflow, cycles, macs, used, rest, missing }) {
  return [
    `An array of ${rows} × ${columns}, ${dataflow.replace("_", " ")}, takes ${counted(cycles)} cycles for ${counted(macs)} MACs:`,
    `${usedPart(used)} of what it could multiply, the dashed line.`,
    "Each layer is as wide as its cycles, and filled as high as it uses the array.",
    rest.count
      ? `The ${several(rest.count, "operation")} with fewest cycles, ${counted(rest.cycles)} in all, are not drawn.`
      : "",
    missing ? `${several(missing, "operation")} of unknown products: not in it.` : "",
  ]
    .filter(Boolean)
    .join(" ");
}

function productWords({ products, more }) {
  const words = products.map(([m, k, n, count]) => `${m}×${k}×${n}${count > 1 ? `, ${counted(count)} times` : ""}`);
  return words.join("") + (more ? ` and ${counted(more)} more` : "");
}

function arrayWords(piece) {
  return (
    `${piece.name}: ${usedPart(piece.used)} of the array in ${counted(piece.cycles)} cycles, ` +
    `${counted(piece.macs)} MACs; M×K×N ${productWords(piece)}`
  );
}

/** The layers with most cycles. */
function arrayTable(place, array) {
  const [rows, columns] = array.cells;
  const longest = unpacked(array.rows)
    .sort((a, b) => Number(b.cycles) - Number(a.cycles))
    .slice(0, 10);
  const cells = longest.map((row) => [
    layerName(row.scope),
    productWords(row),
    counted(row.macs),
    counted(row.cycles),
    percent(row.cycles, array.cycles),
    usedPart(Number(row.macs) / (Number(row.cycles) * rows * columns)),
  ]);
  const headings = ["Most cycles", "M×K×N", "MACs", "Cycles", "Part", "Utilisation"];
  if (cells.length)
    place.replaceChildren(lines("Layers with most cycles", headings, cells, [1, 2, 3, 4, 5]));
}
