"use strict";
// A deployment's memory: its arena as a map of offsets over steps, and what lives before and after lowering.

/** Buffers as rectangles: steps across, offsets up. */
function arenaPlot(figure, arena, width) {
  const buffers = unpacked(arena.buffers);
  const end = Math.max(arena.steps, 1);
  const [height, left, right, top, bottom] = [width < NARROW ? 300 : 380, 64, 16, 26, 38];
  const whole = Number(arena.bytes);
  const caption = arenaCaption(arena, buffers.length);
  if (!buffers.length) return fill(figure, caption, []);
  const across = (width - left - right) / end;
  const up = (height - top - bottom) / whole;
  const drawing = Plot.plot({
    width,
    height,
    marginLeft: left,
    marginRight: right,
    marginTop: top,
    marginBottom: bottom,
    style: STYLE,
    ariaLabel: "Arena: offsets over execution order",
    ariaDescription: caption,
    x: stepAxis(end, width),
    y: {
      label: "offset",
      ticks: 5,
      tickFormat: (value) => rounded(value, "B"),
      domain: [0, whole],
    },
    marks: [
      Plot.rect(buffers, {
        x1: "first",
        x2: (buffer) => buffer.last + 1,
        y1: (buffer) => Number(buffer.offset),
        y2: (buffer) => Number(buffer.offset) + Number(buffer.bytes),
        fill: (buffer) => (livesAt(buffer, arena.step) ? "var(--series-soft)" : "var(--track)"),
        stroke: (buffer) => (livesAt(buffer, arena.step) ? "var(--series)" : "var(--muted)"),
        strokeWidth: buffers.length > 150 ? 0.5 : 1,
        insetTop: 0.5,
        insetRight: 0.5,
        className: "pieces",
      }),
      Plot.text(["▾"], { x: arena.step + 0.5, y: whole, dy: -7, fill: "var(--text)" }),
      nameMarks(
        buffers.map((buffer) => ({
          name: buffer.op ? layerName(buffer.scope) : "input",
          x: (buffer.first + buffer.last + 1) / 2,
          y: Number(buffer.offset) + Number(buffer.bytes) / 2,
          wide: (buffer.last + 1 - buffer.first) * across,
          high: Number(buffer.bytes) * up,
        })),
      ),
    ],
  });
  const key = [
    [`lives at step ${arena.step} (▾), when most do`, "var(--series)"],
    ["lives at other steps", "var(--muted)"],
  ];
  fill(figure, caption, [drawing], key);
  explore(figure, drawing, buffers.map(bufferWords), "buffer");
}

function livesAt(buffer, step) {
  return buffer.first <= step && step <= buffer.last;
}

function arenaCaption(arena, drawn) {
  const { rest } = arena;
  const count = drawn + rest.count;
  const gap = Number(arena.bytes) - Number(arena.bound);
  return [
    `${several(count, "buffer")} in an arena of ${counted(arena.bytes)} B, placed by ${arena.planner},`,
    `aligned to ${counted(arena.align)} B. At most ${counted(arena.bound)} B of them live at once (first at step ${arena.step}):`,
    gap ? `placing costs ${counted(gap)} B more.` : "placing costs nothing more.",
    arena.inside ? "" : "The model's inputs and outputs lie outside.",
    rest.count
      ? `The ${counted(rest.count)} that fill least, ${rounded(rest.bytes, "B")} in all, are placed too and not drawn.`
      : "",
  ]
    .filter(Boolean)
    .join(" ");
}

function bufferWords(buffer) {
  const end = Number(buffer.offset) + Number(buffer.bytes);
  const made = buffer.op ? `, made by ${buffer.op}` : "";
  return (
    `${ownerName(buffer, Infinity)}${made}: ${shapes([buffer.shape])} ${buffer.dtype}, ${counted(buffer.bytes)} B ` +
    `at ${counted(buffer.offset)} to ${counted(end)}, ${lifetime(buffer)}`
  );
}

/** Memory as written and as lowered, one above the other, on one scale of bytes. */
function loweredPlot(figure, before, after, width) {
  const programs = [
    ["as written", before],
    ["lowered", after],
  ].filter(([, memory]) => memory);
  const most = d3.max(programs, ([, memory]) => Number(memory.peak));
  const caption = loweredCaption(before, after);
  const drawings = programs.map(([name, memory]) => {
    const points = memorySpans(memory);
    const end = points.at(-1).last + 1;
    return Plot.plot({
      width,
      height: 170,
      marginLeft: 64,
      marginTop: 40,
      marginRight: 16,
      marginBottom: 38,
      style: STYLE,
      ariaLabel: `Memory over execution order, ${name}`,
      ariaDescription: caption,
      x: stepAxis(end, width),
      y: {
        label: `bytes alive, ${name}`,
        grid: true,
        ticks: 3,
        tickFormat: (value) => rounded(value, "B"),
        domain: [0, most * 1.05 || 1],
      },
      marks: [
        aliveMarks(points, end),
        peakMarks(Number(memory.peak), memory.step + 0.5, end),
        Plot.tip(points, Plot.pointerX(memoryTip())),
      ],
    });
  });
  fill(figure, caption, drawings);
}

/** Why the two differ, in figures. */
function loweredCaption(before, after) {
  const lowered = `lowered, at most ${counted(after.peak)} B in ${several(after.steps, "step")}`;
  if (!before) return `Of activations live at once ${lowered}.`;
  return (
    `Of activations live at once as written at most ${counted(before.peak)} B in ${several(before.steps, "step")}; ` +
    `${lowered}, ${percent(after.peak, before.peak)} of that. Both on one scale of bytes.`
  );
}
