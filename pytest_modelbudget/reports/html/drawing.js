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
  for (const svg of drawing) {
    svg.setAttribute("role", "img"); // one picture to those who hear it, by its own description
    for (const part of svg.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
  }
  figure.replaceChildren(says, ...(key.length ? [legend] : []), ...drawing);
}

/** Room for names to the left of a drawing, and how a name fits into it. */
function leftMargin(names, width) {
  const letter = 6.6; // px, the widest that 12 px letters are on average
  const room = Math.min(
    width * 0.4,
    16 + letter * d3.max([14, ...names.map((name) => name.length)]),
  );
  return { width: room, label: (name) => shortened(name, Math.floor((room - 14) / letter)) };
}
