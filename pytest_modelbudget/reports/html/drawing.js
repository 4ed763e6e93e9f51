"use strict";
// What all plots share: their look, and the figure around a drawing.

const STYLE = {
  background: "transparent",
  color: "inherit",
  fontSize: "12px",
  overflow: "visible",
};
const HALO = { stroke: "var(--surface)", strokeWidth: 4, fill: "var(--text)" };
const NARROW = 560;
const LETTER = 6.6; // px, the widest that 12 px letters are on average
const TIP = { fill: "var(--surface)", stroke: "var(--line)", lineHeight: 1.25 };

/** The figure's contents: what it says, and the drawing, which says the same to those who hear it. */
function fill(figure, caption, drawing, key = []) {
  const says = element("figcaption", { text: caption });
  const legend = element("ul", { class: "key", "aria-label": "Colours" });
  for (const [name, colour] of key) {
    const mark = element("i");
    mark.style.setProperty("--mark", colour);
    legend.append(element("li", { children: [mark, name] }));
  }
  const model = document.querySelector("#model h1").textContent;
  for (const svg of drawing) {
    svg.setAttribute("role", "img"); // one picture to those who hear it, by its own description
    svg.setAttribute("aria-label", `${model}: ${svg.getAttribute("aria-label")}`);
    for (const part of svg.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
  }
  figure.replaceChildren(says, ...(key.length ? [legend] : []), ...drawing);
}

/** Room for names to the left of a drawing, and how a name fits into it. */
function leftMargin(names, width) {
  const room = Math.min(
    width * 0.4,
    16 + LETTER * d3.max([14, ...names.map((name) => name.length)]),
  );
  return { width: room, label: (name) => shortened(name, Math.floor((room - 14) / LETTER)) };
}

/** Names inside the rectangles that have room for them, upright ones where a rectangle is narrow and tall. */
function nameMarks(places) {
  const room = (length) => Math.floor((length - 8) / LETTER);
  const isRead = (length, thickness, name) =>
    thickness >= 16 && room(length) >= Math.min(7, name.length);
  const across = places.filter(({ wide, high, name }) => isRead(wide, high, name));
  const up = places.filter(
    ({ wide, high, name }) => wide < high && !isRead(wide, high, name) && isRead(high, wide, name),
  );
  const look = { x: "x", y: "y", fill: "var(--text)", fontSize: 11, pointerEvents: "none" };
  return [
    Plot.text(across, { ...look, text: ({ wide, name }) => shortened(name, room(wide)) }),
    Plot.text(up, { ...look, rotate: -90, text: ({ high, name }) => shortened(name, room(high)) }),
  ];
}

/** One rectangle after another by pointer, touch or arrow keys; a line below the drawing says what it is. */
function explore(figure, drawing, words, noun) {
  const pieces = [...drawing.querySelectorAll(".pieces rect")];
  const says = element("output", {
    class: "says",
    text: `Point at a ${noun}, or press ← and → here.`,
  });
  let at = -1;
  function choose(next) {
    pieces[at]?.classList.remove("chosen");
    at = Math.max(0, Math.min(pieces.length - 1, next));
    pieces[at].classList.add("chosen");
    says.value = words[at];
    drawing.setAttribute("aria-valuenow", at + 1);
    drawing.setAttribute("aria-valuetext", words[at]);
  }
  const ways = {
    ArrowRight: () => at + 1,
    ArrowUp: () => at + 1,
    ArrowLeft: () => at - 1,
    ArrowDown: () => at - 1,
    Home: () => 0,
    End: () => pieces.length - 1,
  };
  drawing.addEventListener("keydown", (event) => {
    if (!(event.key in ways)) return;
    event.preventDefault();
    choose(ways[event.key]());
  });
  pieces.forEach((piece, index) => piece.addEventListener("pointerover", () => choose(index)));
  // A value among several, as assistive technology knows it: arrow keys reach the drawing.
  const role = { role: "slider", tabindex: 0, "aria-valuemin": 1, "aria-valuemax": pieces.length };
  for (const [name, value] of Object.entries({ ...role, "aria-valuenow": 1 }))
    drawing.setAttribute(name, value);
  drawing.setAttribute("aria-valuetext", words[0]);
  figure.append(says);
}
