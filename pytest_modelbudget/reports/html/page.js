"use strict";
// Which view is open: the address names a model (#model-resnet18) and a section of it (#model-resnet18:memory).

const machine = { device: "", flops: 0, bytes: 0 }; // kept from model to model; nothing is drawn before one is chosen
const main = document.getElementById("overview");
const view = document.getElementById("model");
const title = document.title;
let asked = ""; // the model that the address names
let left = 0; // how far the overview was scrolled when it was left
let plotted = null; // what the plots of the open model are drawn from

const TOO_OLD =
  "This browser is too old to unpack the views of models: DecompressionStream is missing.";

/** A model's markup and numbers, out of their compressed form in the page. */
async function unpack(packed) {
  if (!("DecompressionStream" in window)) return { markup: `<h1 tabindex="-1">${TOO_OLD}</h1>` };
  const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function open(anchor) {
  const packed = document.getElementById(anchor);
  const { markup, ...numbers } = await unpack(packed);
  if (asked !== anchor) return; // the reader went on meanwhile
  plotted = numbers;
  view.innerHTML = markup; // written by the templates, which escape all that is not theirs
  main.hidden = true;
  view.hidden = false;
  document.title = `${view.querySelector("h1").textContent} · model budget`;
  if (plotted.profile) tables();
  draw();
  window.scrollTo(0, 0);
  view.querySelector("h1").focus({ preventScroll: true });
}

function close() {
  if (!asked) return;
  asked = "";
  plotted = null;
  view.hidden = true;
  view.replaceChildren();
  main.hidden = false;
  document.title = title;
  window.scrollTo(0, left);
}

async function route() {
  const [anchor, section] = location.hash.slice(1).split(":");
  if (document.getElementById(anchor)?.type !== "application/gzip") return close();
  if (anchor !== asked) {
    if (!asked) left = window.scrollY;
    asked = anchor;
    await open(anchor);
  }
  if (section && anchor === asked)
    view.querySelector(`[data-section="${CSS.escape(section)}"]`)?.scrollIntoView();
}

const DEVICE_TABLES = {
  device: (place, profile) => deviceTable(place, profile.roofline),
  array: (place, profile) => arrayTable(place, profile.array),
};

function tables() {
  for (const place of view.querySelectorAll("[data-device-table]"))
    DEVICE_TABLES[place.dataset.deviceTable](place, deployed(place));
  layerTable(view.querySelector("[data-table=layers]"), plotted.profile.layers);
  ownerTable(view.querySelector("[data-table=owners]"), plotted.profile.memory);
  view
    .querySelector("[data-icicle]")
    .addEventListener("input", () => draw({ names: ["icicle"] }));
  const form = view.querySelector("[data-machine]");
  form.device.value = machine.device;
  showMachine(form);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    const [chosen] = form.device.selectedOptions;
    machine.device = chosen.value;
    if (target === form.device && chosen.dataset.flops)
      Object.assign(machine, { flops: +chosen.dataset.flops, bytes: +chosen.dataset.bytes });
    else if (target !== form.device && form.checkValidity())
      Object.assign(machine, { flops: form.flops.value * 1e9, bytes: form.bytes.value * 1e9 });
    if (target === form.device) showMachine(form);
    draw({ names: ["roofline"] });
  });
}

/** The figures of the chosen device; of another than the shipped ones, the reader writes them. */
function showMachine(form) {
  const isOther = form.device.selectedIndex === form.device.length - 1;
  for (const input of [form.flops, form.bytes]) {
    input.parentElement.hidden = !machine.device;
    input.readOnly = !isOther;
    input.value = machine[input.name] ? machine[input.name] / 1e9 : "";
  }
}

const DRAWINGS = {
  memory: (figure, width) => memoryPlot(figure, plotted.profile.memory, plotted.limit, width),
  roofline: (figure, width) => {
    figure.hidden = !(machine.device && machine.flops && machine.bytes);
    if (figure.hidden) return view.querySelector("[data-table=ops]").replaceChildren();
    rooflinePlot(figure, plotted.profile.ops, machine, width);
    opTable(view.querySelector("[data-table=ops]"), plotted.profile.ops, machine);
  },
  icicle: (figure, width) => {
    const key = new FormData(view.querySelector("[data-icicle]")).get("figure");
    iciclePlot(figure, plotted.profile, key, width);
  },
  serving: (figure, width) => servingPlot(figure, plotted.profile.serving, width),
  layers: (figure, width) => layersPlot(figure, plotted.profile.layers, width),
  divergence: (figure, width) =>
    divergencePlot(figure, plotted.divergence[figure.dataset.position], width),
  arena: (figure, width) => arenaPlot(figure, deployed(figure).arena, width),
  lowered: (figure, width) =>
    loweredPlot(figure, plotted.profile?.memory, deployed(figure).memory, width),
  device: (figure, width) => deviceRooflinePlot(figure, deployed(figure).roofline, width),
  array: (figure, width) => arrayPlot(figure, deployed(figure).array, width),
};

/** The profile of the deployment that a figure belongs to. */
function deployed(figure) {
  return plotted.deployments[figure.dataset.position];
}

/** The drawings of these names, as wide as their figures or as asked for. */
function draw({ names = Object.keys(DRAWINGS), width = null } = {}) {
  for (const figure of view.querySelectorAll("figure[data-plot]")) {
    const name = figure.dataset.plot;
    if (names.includes(name)) DRAWINGS[name](figure, width ?? inside(figure));
  }
}

/** Puts the command before a button on the clipboard; where the browser refuses, selects it for the reader to copy. */
async function copy({ target }) {
  const button = target.closest("button.copy");
  if (!button) return;
  const command = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(command.textContent);
    button.textContent = "Copied";
  } catch {
    window.getSelection().selectAllChildren(command);
    button.textContent = "Selected";
  }
}

/** The width between a figure's paddings. */
function inside(figure) {
  const { paddingLeft, paddingRight } = getComputedStyle(figure);
  return Math.max(240, figure.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight));
}

const SHEET = 680; // px: drawn wider, letters would shrink on paper
let drawnWidth = window.innerWidth;
window.addEventListener("resize", () => {
  if (!plotted || window.innerWidth === drawnWidth) return;
  drawnWidth = window.innerWidth;
  draw();
});
window.addEventListener("beforeprint", () => plotted && draw({ width: SHEET }));
window.addEventListener("afterprint", () => plotted && draw());
window.addEventListener("hashchange", route);
document.addEventListener("click", copy);
document.documentElement.classList.add("scripted");
overview();
route();
