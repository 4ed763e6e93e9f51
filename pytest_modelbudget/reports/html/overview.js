"use strict";
// The table of all limits: filtered by words and verdicts, ordered by file, verdict or headroom.

const VERDICTS = ["over", "unused", "unknown", "warn", "accepted", "within"];

function overview() {
  const controls = document.getElementById("controls");
  const table = document.getElementById("limits");
  const filter = document.getElementById("filter");
  const shown = document.getElementById("shown");
  const bodies = [...table.tBodies];
  const limits = bodies.flatMap((body) =>
    [...body.querySelectorAll("tr.limit")].map((row) => ({
      row,
      body,
      verdict: row.dataset.status,
      room: Number.isNaN(Number(row.dataset.room)) ? Infinity : Number(row.dataset.room),
      words: `${row.cells[1].textContent} ${body.dataset.file}`.toLowerCase(),
    })),
  );
  const flat = element("tbody");

  function select() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const boxes = controls.querySelectorAll("input[name=status]:checked");
    const verdicts = new Set([...boxes].map((box) => box.value));
    let count = 0;
    for (const each of limits) {
      const fits = verdicts.has(each.verdict) && words.every((word) => each.words.includes(word));
      each.row.hidden = !fits;
      count += fits;
    }
    for (const body of bodies) body.hidden = !body.querySelector("tr.limit:not([hidden])");
    const all = several(limits.length, "limit");
    shown.value = count === limits.length ? all : `${counted(count)} of ${all}`;
  }

  function order() {
    const by = document.getElementById("order").value;
    table.classList.toggle("by-file", by === "file");
    if (by === "file") {
      flat.remove();
      for (const each of limits) each.body.append(each.row);
      table.append(...bodies);
    } else {
      const key = by === "room" ? (each) => each.room : (each) => VERDICTS.indexOf(each.verdict);
      const sorted = [...limits].sort((a, b) => d3.ascending(key(a), key(b)));
      for (const body of bodies) body.remove();
      flat.append(...sorted.map((each) => each.row));
      table.append(flat);
    }
    select();
  }

  controls.hidden = false;
  controls.addEventListener("input", select);
  controls.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("order").addEventListener("change", order);
  if (filter.value || document.getElementById("order").value !== "file")
    order(); // kept by a reload
  else shown.value = several(limits.length, "limit");
}
