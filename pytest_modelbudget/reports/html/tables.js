"use strict";
// Tables of a model's view: the layers (sorted and filtered), and the owners of the peak.

const FIGURES = [
  ["params", "Params"],
  ["weight_bytes", "Weights, B"],
  ["macs", "MACs"],
  ["output_bytes", "Outputs, B"],
  ["traffic", "Traffic, B"],
];

/** The layer table in its place. */
function layerTable(place, layers) {
  const rows = unpacked(layers.rows);
  const nodeOf = new Map([...nodes(tree(rows))].map((node) => [node.row, node]));
  const folded = new Set();
  const totals = Object.fromEntries(FIGURES.map(([key]) => [key, total(rows, key)]));
  const filter = element("input", {
    type: "search",
    placeholder: "layer or type",
    autocomplete: "off",
  });
  const count = element("output", { class: "muted", "aria-live": "polite" });
  const body = element("tbody");
  const foot = element("tr");
  let sorted = { key: null, descending: true };

  const headings = [
    ["scope", "Layer"],
    ["type", "Type"],
    ["inputs", "Input"],
    ["outputs", "Output"],
    ...FIGURES,
  ];
  const heads = headings.map(([key, text], at) => {
    const button = element("button", { type: "button", text });
    button.addEventListener("click", () => sort(key));
    return element("th", {
      scope: "col",
      "data-key": key,
      "data-name": text,
      class: at > 1 ? "number" : "",
      children: [button],
    });
  });

  function sort(key) {
    const first = FIGURES.some(([figure]) => figure === key); // figures begin with the largest
    if (sorted.key !== key) sorted = { key, descending: first };
    else if (sorted.descending === first) sorted = { key, descending: !first };
    else sorted = { key: null, descending: true };
    show();
  }

  function show() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) =>
      words.every((word) =>
        `${layerName(row.scope ?? "")} ${row.type}`.toLowerCase().includes(word),
      );
    let chosen = rows.filter(fits);
    const asTree = sorted.key === null && !words.length;
    if (sorted.key !== null)
      chosen = ordered(
        chosen.filter((row) => row.params !== null),
        sorted,
      );
    if (asTree) chosen = unfoldedRows(chosen, folded);
    all.hidden = !asTree || !containers.length;
    all.textContent = folded.size ? "Unfold all" : "Fold all";
    body.replaceChildren(
      ...chosen.map((row) => layerRow(row, totals, asTree, nodeOf.get(row), folded.has(row))),
    );
    for (const head of heads) {
      if (head.dataset.key === sorted.key)
        head.setAttribute("aria-sort", sorted.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    const sums = FIGURES.map(([key]) =>
      element("td", { class: "number", text: counted(total(chosen, key)) }),
    );
    foot.replaceChildren(
      element("th", { scope: "row", colspan: "4", text: words.length ? "Sum of these" : "Sum" }),
      ...sums,
    );
    const left = layers.folded_at === null ? "" : `, folded below level ${layers.folded_at}`;
    count.value = `${chosen.length} of ${rows.length} rows${left}`;
  }

  const containers = rows.filter((row) => row.depth && nodeOf.get(row).children.length);
  const all = element("button", { type: "button", class: "fold" });
  all.addEventListener("click", () => {
    if (folded.size) folded.clear();
    else for (const row of containers) folded.add(row);
    show();
  });
  body.addEventListener("click", ({ target }) => {
    const button = target.closest("button.fold");
    if (!button) return;
    const row = rows[button.dataset.at];
    if (!folded.delete(row)) folded.add(row);
    show();
    body.querySelector(`[data-at="${button.dataset.at}"]`).focus();
  });
  filter.addEventListener("input", show);
  place.replaceChildren(
    element("div", {
      class: "controls",
      children: [element("label", { text: "Filter ", children: [filter] }), all, count],
    }),
    scrolled(
      "Layer table",
      element("table", {
        class: "lines",
        children: [
          captionOf("Layers with their figures"),
          element("thead", { children: [element("tr", { children: heads })] }),
          body,
          element("tfoot", { children: [foot] }),
        ],
      }),
      "scroll tall",
    ),
  );
  show();
}

/** The sum of a column, exact however large. */
function total(rows, key) {
  return rows.reduce((sum, row) => sum + BigInt(row[key] ?? 0), 0n);
}

function ordered(rows, { key, descending }) {
  const value = FIGURES.some(([figure]) => figure === key)
    ? (row) => Number(row[key])
    : (row) => (Array.isArray(row[key]) ? shapes(row[key]) : (row[key] ?? ""));
  return [...rows].sort((a, b) => (descending ? d3.descending : d3.ascending)(value(a), value(b)));
}

/** A node, and all that is below it. */
function* nodes(node) {
  yield node;
  for (const child of node.children) yield* nodes(child);
}

/** The rows that are not below a folded one. */
function unfoldedRows(rows, folded) {
  let hiddenBelow = Infinity;
  return rows.filter((row) => {
    if (row.depth > hiddenBelow) return false;
    hiddenBelow = folded.has(row) ? row.depth : Infinity;
    return true;
  });
}

/** A row of the table; a container has the sums of its layers, and a triangle that folds them. */
function layerRow(row, totals, asTree, node, isFolded) {
  const name = asTree ? nameInTree(row) : nameAlone(row);
  const head = element("th", {
    scope: "row",
    class: asTree ? "mono tree" : "mono",
    title: nameAlone(row),
    children: [name],
  });
  head.style.setProperty("--depth", row.depth);
  if (asTree && node.children.length && row.depth)
    head.prepend(
      element("button", {
        type: "button",
        class: "fold",
        "aria-expanded": !isFolded,
        "aria-label": `Layers of ${nameAlone(row)}`,
        "data-at": node.at,
      }),
    );
  const isContainer = row.params === null;
  const figures = isContainer ? { ...row, ...node.sums } : row;
  const cells = [
    element("td", { class: "kind", text: kindOf(row) }),
    shapeCell(row.inputs),
    shapeCell(row.outputs),
    ...FIGURES.map(([key]) => figureCell(figures, key, Number(totals[key]))),
  ];
  return element("tr", { class: isContainer ? "container" : "", children: [head, ...cells] });
}

/** Whether a row is what a container does or owns beside the layers below it. */
function isOwn(row) {
  return row.type.startsWith("(own");
}

/** The last part of the path, below the row of its container. */
function nameInTree(row) {
  if (row.scope === null || isOwn(row)) return row.type;
  return row.scope.split(".").pop() || "(model)";
}

function nameAlone(row) {
  if (row.scope === null) return row.type;
  return layerName(row.scope) + (isOwn(row) ? " (own)" : "");
}

/** The type of a layer, how often it is called if not once, and what it lacks. */
function kindOf(row) {
  const words = [row.scope === null || isOwn(row) ? "" : row.type];
  if (row.calls > 1) words[0] += ` ×${row.calls}`;
  if (row.lacks && !isOwn(row)) words.push(row.lacks);
  if (row.unmeasured) words.push(`${row.unmeasured} unmeasured`);
  return words.filter(Boolean).join(", ");
}

function shapeCell(all) {
  const text = shapes(all.slice(0, 1)) + more(all);
  return element("td", { class: "number", text, title: shapes(all) });
}

/** A figure with its part of the column as a bar below. */
function figureCell(row, key, whole) {
  const missing = { macs: row.unmeasured, output_bytes: row.unwritten, traffic: row.unwritten }[key];
  const bound = missing ? "≥ " : "";
  const cell = element("td", {
    class: Number(row[key]) ? "number part" : "number zero",
    text: bound + counted(row[key]),
    title: `${percent(row[key], whole)} of all`,
  });
  cell.style.setProperty("--part", `${whole ? (100 * Number(row[key])) / whole : 0}%`);
  return cell;
}

function more(all) {
  return all.length > 1 ? ` +${all.length - 1}` : "";
}

/** A table that scrolls by itself, and by keyboard. */
function scrolled(label, table, classes = "scroll") {
  return element("div", {
    class: classes,
    tabindex: "0",
    role: "group",
    "aria-label": label,
    children: [table],
  });
}

/** The name of a table for those who hear it: a heading above says it to the others. */
function captionOf(label) {
  return element("caption", { class: "unseen", text: label });
}

/** A plain table from headings and rows of text; figures are the columns to align right. */
function lines(label, headings, rows, figures = []) {
  const side = (at) => (figures.includes(at) ? "number" : "");
  return scrolled(
    label,
    element("table", {
      class: "lines",
      children: [
        captionOf(label),
        element("thead", {
          children: [
            element("tr", {
              children: headings.map((text, at) =>
                element("th", { scope: "col", class: side(at), text }),
              ),
            }),
          ],
        }),
        element("tbody", {
          children: rows.map((row) =>
            element("tr", {
              children: row.map((text, at) =>
                element("td", { class: `${side(at)}${at ? "" : " mono"}`, text }),
              ),
            }),
          ),
        }),
      ],
    }),
  );
}

/** Who owns the peak: activations by size. */
function ownerTable(place, memory) {
  const rows = memory.owners.map((owner) => [
    ownerName(owner, Infinity),
    owner.op,
    `${shapes([owner.shape])} ${owner.dtype}`,
    counted(owner.bytes),
    percent(owner.bytes, memory.peak),
    lifetime(owner),
  ]);
  if (memory.rest.count)
    rows.push([
      `${memory.rest.count} smaller ones`,
      "",
      "",
      counted(memory.rest.bytes),
      percent(memory.rest.bytes, memory.peak),
      "",
    ]);
  place.replaceChildren(
    lines(
      "What lives at the peak",
      ["Layer", "Operation", "Tensor", "Bytes", "Part", "Alive"],
      rows,
      [3, 4],
    ),
  );
}
