"use strict";
// The roofline: what operations reach at best on a machine, and the table of the longest.

const KINDS = 6; // kinds of operations with a colour of their own

/** Each operation's time at best on a machine, and what bounds it. */
function reached(ops, machine) {
  return unpacked(ops.points).map((point) => {
    const bytes = Number(point.read) + Number(point.weights) + Number(point.write);
    const flops = Number(point.flops);
    const [computing, moving] = [flops / machine.flops, bytes / machine.bytes];
    return {
      ...point,
      name: point.scope === null ? `${point.count} small ones` : layerName(point.scope),
      bytes,
      flops,
      intensity: flops / bytes,
      roof: Math.min(machine.flops, (machine.bytes * flops) / bytes),
      time: Math.max(computing, moving),
      byMemory: moving >= computing,
    };
  });
}

/** Operations on the roof of a machine: by memory on its slope, by compute on its flat. */
function rooflinePlot(figure, ops, machine, width) {
  const points = reached(ops, machine);
  const drawn = points.filter((point) => point.flops > 0 && point.bytes > 0);
  const ridge = machine.flops / machine.bytes;
  const whole = d3.sum(points, (point) => point.time);
  const caption = rooflineCaption(points, ops.unknown, ridge);
  if (!drawn.length) {
    return fill(figure, `${caption} Nothing both computes and moves something.`, []);
  }
  const colours = kindColours(drawn);
  const domain = around(
    ridge,
    d3.extent(drawn, (point) => point.intensity),
  );
  const roof = (x) => Math.min(machine.flops, machine.bytes * x);
  const heights = [roof(domain[0]) / 1.6, machine.flops * 1.9];
  const drawing = dotsUnderRoofs(drawn, (point) => colours(point.kind), {
    width,
    height: width < NARROW ? 280 : 360,
    ariaLabel: "Roofline",
    ariaDescription: caption,
    x: { ...logarithmic(domain), label: "FLOP per byte moved" },
    y: { ...logarithmic(heights), label: "FLOP/s at best", tickFormat: (y) => rounded(y, "FLOP/s") },
    whole,
    roofs: roofMarks(roof, domain, ridge, heights[0]),
    ridge,
    tip: rooflineTip(whole),
  });
  fill(figure, caption, [drawing], colours.key);
}

/** Operations as dots on their roofs, as large as the part of the whole time that they take. */
function dotsUnderRoofs(drawn, colour, { whole, roofs, ridge, tip, ...frame }) {
  return Plot.plot({
    ...frame,
    marginLeft: 84,
    marginRight: 20,
    marginTop: 30,
    marginBottom: 42,
    style: STYLE,
    x: { ...frame.x, tickFormat: (x) => rounded(x) },
    r: { type: "sqrt", domain: [0, whole], range: [2.5, frame.width < NARROW ? 20 : 30] },
    marks: [
      roofs,
      Plot.dot(drawn, {
        x: "intensity",
        y: "roof",
        r: "time",
        sort: { channel: "-r" },
        fill: colour,
        fillOpacity: 0.5,
        stroke: colour,
        strokeWidth: 1.2,
      }),
      labelMarks(drawn, frame.x.domain, ridge, frame.width),
      Plot.tip(drawn, Plot.pointer({ ...TIP, x: "intensity", y: "roof", maxRadius: 30, title: tip })),
    ],
  });
}

function rooflineCaption(points, unknown, ridge) {
  const whole = d3.sum(points, (point) => point.time);
  const byMemory = d3.sum(points, (point) => (point.byMemory ? point.time : 0));
  const still = points.filter((point) => point.flops === 0);
  const calls = d3.sum(still, (point) => point.count);
  const moved = rounded(
    d3.sum(still, (point) => point.bytes),
    "B",
  );
  const lacking = d3.sum(unknown, (each) => each.count);
  return [
    `At best ${seconds(whole)} on this machine, one operation after another;`,
    `memory decides ${percent(byMemory, whole)} of it, below ${rounded(ridge)} FLOP per byte.`,
    "A larger dot takes longer. FLOPs by convention flops/1.",
    calls
      ? `What computes nothing (${several(calls, "operation")}, ${moved} moved) is in that time, and not drawn.`
      : "",
    lacking ? `What has no figure (${several(lacking, "operation")}) is not in it.` : "",
  ]
    .filter(Boolean)
    .join(" ");
}

/** Colours for the kinds that take longest, and the key to them. */
function kindColours(drawn) {
  const kinds = d3.groupSort(
    drawn,
    (group) => -d3.sum(group, (point) => point.time),
    (point) => point.kind,
  );
  const named = kinds.length > KINDS + 1 ? kinds.slice(0, KINDS) : kinds;
  const colour = (kind) =>
    named.includes(kind) ? `var(--c${named.indexOf(kind) + 1})` : "var(--muted)";
  const rest = kinds.length - named.length;
  colour.key = named.map((kind) => [kind, colour(kind)]);
  if (rest) colour.key.push([`${rest} more kinds`, "var(--muted)"]);
  return colour;
}

/** All intensities, and the ridge well inside, so that its words find room on both sides. */
function around(ridge, [low, high]) {
  const bend = Math.log(ridge);
  let [left, right] = [Math.log(Math.min(low, ridge) / 2), Math.log(Math.max(high, ridge) * 2)];
  left = Math.min(left, bend - 0.6 * (right - bend));
  right = Math.max(right, bend + 0.6 * (bend - left));
  return [Math.exp(left), Math.exp(right)];
}

/** A logarithmic axis with ticks at powers of ten; at 2 and 5 times those where there are few. */
function logarithmic(domain) {
  const [low, high] = domain;
  const exponents = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const powers = exponents.map((exponent) => 10 ** exponent);
  const steps =
    powers.length > 4 ? powers : powers.flatMap((power) => [power, 2 * power, 5 * power]);
  const ticks = steps.filter((step) => step >= low && step <= high);
  return { type: "log", domain, grid: true, ticks };
}

/** The roof, its ridge, and what bounds an operation on either side. */
function roofMarks(roof, [low, high], ridge, floor) {
  const words = { x: ridge, y: floor, lineAnchor: "bottom", dy: -6, ...HALO, fill: "var(--muted)" };
  return [
    Plot.line([low, ridge, high], { x: (x) => x, y: roof, stroke: "var(--muted)", strokeWidth: 2 }),
    Plot.ruleX([ridge], {
      y1: floor,
      y2: roof(ridge),
      stroke: "var(--muted)",
      strokeDasharray: "3 3",
    }),
    Plot.text(["by memory ◂"], { ...words, text: (word) => word, textAnchor: "end", dx: -5 }),
    Plot.text(["▸ by compute"], { ...words, text: (word) => word, textAnchor: "start", dx: 5 }),
  ];
}

/** Names of the longest operations, as far as they find room beside each other. */
function labelMarks(drawn, [low, high], ridge, width) {
  const across = (intensity) => (width * Math.log(intensity / low)) / Math.log(high / low);
  const named = drawn.filter((point) => point.scope !== null);
  const longest = named.sort((a, b) => b.time - a.time).slice(0, 12);
  const chosen = [];
  for (const point of longest) {
    const place = across(point.intensity);
    const isFree = chosen.every((each) => Math.abs(across(each.intensity) - place) > 170);
    if (chosen.length < 4 && isFree && Math.abs(place - across(ridge)) > 60) chosen.push(point);
  }
  return chosen.map((point) => {
    const onSlope = point.intensity < ridge;
    const isLast = across(point.intensity) > 0.75 * width;
    return Plot.text([point], {
      x: "intensity",
      y: "roof",
      text: (each) => shortened(each.name, 24),
      fontSize: 11,
      textAnchor: onSlope ? "start" : isLast ? "end" : "middle",
      dx: onSlope ? 14 : 0,
      dy: onSlope ? 14 : 26,
      ...HALO,
    });
  });
}

function rooflineTip(whole) {
  return (point) =>
    [
      shortened(point.name, 48),
      point.kind,
      `${rounded(point.flops, "FLOP")}, ${rounded(point.bytes, "B")} moved`,
      `${rounded(point.intensity)} FLOP/B`,
      `${seconds(point.time)} at best, ${percent(point.time, whole)} of all`,
    ].join("\n");
}

/** The operations that take longest at best. */
function opTable(place, ops, machine) {
  const points = reached(ops, machine);
  const whole = d3.sum(points, (point) => point.time);
  const longest = points.sort((a, b) => b.time - a.time).slice(0, 10);
  const headings = ["Longest at best", "Kind", "FLOPs", "Bytes moved", "FLOP/B", "At best", "Part"];
  const rows = longest.map((point) => [
    point.name,
    point.kind,
    counted(point.flops),
    counted(point.bytes),
    point.bytes ? rounded(point.intensity) : "",
    seconds(point.time),
    percent(point.time, whole),
    point.byMemory ? "memory" : "compute",
  ]);
  const label = "Operations that take longest at best";
  place.replaceChildren(lines(label, [...headings, "Bound by"], rows, [2, 3, 4, 5, 6]));
}
