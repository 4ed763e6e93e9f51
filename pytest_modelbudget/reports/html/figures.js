"use strict";
// Numbers as words. What is exact stays so: whole numbers that JavaScript cannot hold come as text.

/** A whole number with every digit, thousands separated; nothing where there is none. */
function counted(value) {
  if (value === null || value === undefined) return "";
  return BigInt(value).toLocaleString("en-US");
}

/** A number in three digits with an SI prefix, as axes and labels show it: "1.38 MB". */
function rounded(value, unit = "") {
  const number = Number(value);
  const text =
    number === 0
      ? "0"
      : Math.abs(number) < 1
        ? d3.format(".3~r")(number)
        : d3.format(".3~s")(number);
  const [, digits, prefix] = /^(.*?)([a-zA-Zµ]?)$/.exec(text);
  return `${digits} ${prefix}${unit}`.trim();
}

/** A part of a whole as a percentage: "6.2%". */
function percent(part, whole) {
  const share = Number(whole) ? (100 * Number(part)) / Number(whole) : 0;
  if (share > 0 && share < 0.1) return "<0.1%";
  return `${share >= 9.95 ? share.toFixed(0) : share.toFixed(1)}%`;
}

/** Sizes joined, several shapes apart: "1×3×224×224". */
function shapes(all) {
  return all.map((sizes) => sizes.join("×") || "scalar").join(", ");
}

/** Seconds in a unit that suits them: "12.3 µs". */
function seconds(value) {
  return value === 0
    ? "0 s"
    : `${d3
        .format(".3~s")(value)
        .replace(/([a-zA-Zµ]?)$/, " $1")}s`;
}

/** A count and its noun: "1 operation", "3 operations". */
function several(count, noun) {
  return `${counted(count)} ${noun}${Number(count) === 1 ? "" : "s"}`;
}

/** The path of a layer, or the model itself. */
function layerName(scope) {
  return scope === "" ? "(model)" : scope;
}

/** The end of a long path, which tells more than its beginning. */
function shortened(text, most) {
  return text.length <= most ? text : `…${text.slice(text.length - most + 1)}`;
}

/** Rows as objects, from one list of keys and a list of values for each. */
function unpacked({ columns, rows }) {
  return rows.map((row) => Object.fromEntries(row.map((value, at) => [columns[at], value])));
}

/** An element with text, attributes and children; text is never read as markup. */
function element(name, { text, children = [], ...attributes } = {}) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}
