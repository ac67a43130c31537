// The frame of the page: list of traces, views, keys, theme.
import {
  $, Told, address, alone, axes, catalogue, currentHeads, currentMap, h, here, inWords, list, onChange, pictureAddress, ranges, readAddress, readCatalogue, recorded, request, say, set,
  state, token, traceOf, windowOf,
} from "./common.js";
import { begin, viewAsk } from "./ask.js";
import { compared, viewCompare } from "./compare.js";
import { explainPath, viewExplain } from "./explain.js";
import { saveShown } from "./drawn.js";
import { viewGeneration } from "./generation.js";
import { viewGradient } from "./gradient.js";
import { viewHead } from "./head.js";
import { onImage, viewImage } from "./image.js";
import { viewOverview } from "./overview.js";
import { viewQuery } from "./query.js";
import { follows, viewRollout } from "./rollout.js";
import { viewText } from "./text.js";
import { asksOf, viewTraining } from "./training.js";

const VIEWS = [
  ["overview", "Overview", viewOverview], ["head", "Head", viewHead], ["text", "Text", viewText], ["image", "Image", viewImage], ["rollout", "Rollout", viewRollout],
  ["query", "Query and key", viewQuery], ["generation", "Generation", viewGeneration], ["compare", "Compare", viewCompare], ["ask", "Ask", viewAsk], ["gradient", "Gradient", viewGradient],
  ["training", "Training", viewTraining], ["explain", "Explain", viewExplain],
];
// Views that need no trace.
const ALONE = ["ask", "explain"];
const shown = (view, trace) => {
  if (view === "ask") return catalogue.model !== null;
  if (view === "explain") return catalogue.explains;
  if (trace?.training || view === "training") return view === "training" && Boolean(trace?.training);
  if (trace?.long) return ["overview", "head"].includes(view);
  if (view === "image") return trace?.image && trace.maps.some(onImage);
  if (view === "gradient") return trace?.asked && catalogue.model;
  if (view === "query") return trace?.asked && catalogue.model?.shows_queries;
  if (view === "rollout") return trace?.maps.some(follows);
  if (view === "generation") return trace?.searched;
  return trace !== undefined;
};
// Views that have files of their own, or none.
const UNSAVED = ["ask", "query", "gradient", "generation", "rollout"];

// Rows of a file, as the server draws it.
const MOST_CHOSEN = 64;

let ticket = 0;
async function draw() {
  const mine = ++ticket;
  const trace = traceOf(state.trace);
  const possible = VIEWS.filter(([view]) => shown(view, trace));
  if (!possible.some(([view]) => view === state.view)) state.view = trace ? possible[0]?.[0] ?? "overview" : catalogue.model ? "ask" : "explain";
  const framed = frame(trace, possible);
  const view = VIEWS.find(([view]) => view === state.view);
  let nodes;
  try {
    if (!shown(state.view, trace)) throw new Told("There is nothing to show: start the server with traces or a model.");
    if (trace && !trace.maps.length && ![...ALONE, "training"].includes(state.view)) throw new Told("This trace has no maps.");
    nodes = await view[2](trace);
  } catch (error) {
    // A later draw has taken its place.
    if (mine !== ticket) return;
    if (!(error instanceof Told)) console.error(error);
    nodes = [h("p", { className: "alert", role: "alert", textContent: error instanceof Told ? error.message : `This view failed: ${error.message}` })];
  }
  await framed;
  if (mine !== ticket) return;
  if (trace && state.trace !== "" && String(trace.id) !== state.trace && !ALONE.includes(state.view)) nodes.unshift(lost(trace));
  nodes = nodes.filter(Boolean);
  const focus = document.activeElement?.dataset?.focus;
  $("main").replaceChildren(...nodes);
  $("main").dataset.view = state.view;
  nodes.forEach((node) => node.dispatchEvent?.(new Event("shown")));
  if (focus) document.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  document.body.dataset.drawn = String(mine);
}

const lost = (trace) => h("p", {
  className: "alert", role: "alert",
  textContent: `There is no trace ${state.trace}${catalogue.model ? "; of the looks of a model only the last ones are kept" : ""}. This is ${trace.name || trace.model}.`,
});

// What the picture of this view is of. What the address chooses stays there when another map is shown, which may have less.
async function pictured(trace) {
  if (state.view === "training") return asksOf();
  const map = currentMap(trace, "map", state.view === "image" ? onImage : undefined);
  const usual = { map, heads: currentHeads(trace.maps[map], state.heads, trace.long) };
  if (state.view === "compare") {
    const { other, second, heads } = compared(trace);
    const sides = ({ queries, keys }) => `${queries.labels.length} ${keys.labels.length}`;
    const [a, b] = await Promise.all([axes(trace, map), axes(other, second)]);
    if (sides(a) !== sides(b)) throw new Told("Maps of other lengths have no file.");
    // A trace whose words are one piece each is the same in words.
    return { ...usual, trace2: other.id, map2: second, heads2: heads[1], words: inWords(trace) || inWords(other) };
  }
  if (!["head", "text", "image"].includes(state.view)) return usual;
  const about = await axes(trace, map);
  if (state.view === "head") {
    const [q0, q1, k0, k1] = windowOf(about) ?? [];
    return { ...usual, q0, q1, k0, k1 };
  }
  const to = state.view === "text" && state.direction === "to";
  const all = list(state.chosen).filter((one) => one < (to ? about.keys : about.queries).labels.length);
  if (all.length > MOST_CHOSEN) throw new Told(`A file shows at most ${MOST_CHOSEN} chosen entries, not ${all.length}.`);
  const chosen = ranges(all);
  if (state.view === "text") return { ...usual, direction: to ? "to" : "from", chosen: chosen || "0" };
  return { ...usual, chosen, overlay: about.keys.grid ? state.overlay : "" };
}

// The list of traces, the views and the texts; the promise is that the files are offered.
async function frame(trace, possible) {
  $("trace").replaceChildren(...catalogue.traces.map((one) => h("option", {
    value: one.id, textContent: `${one.asked && !recorded ? "↳ " : ""}${one.name || one.model}`.slice(0, 90), selected: one === trace,
  })));
  $("trace").parentNode.hidden = !catalogue.traces.length;
  $("views").replaceChildren(...possible.map(([view, name]) => h("a", {
    href: address({ view }), textContent: name, "aria-current": view === state.view ? "page" : null, "data-focus": `view-${view}`,
    onclick: (event) => { if (!event.ctrlKey && !event.metaKey) { event.preventDefault(); set({ view }); } },
  })));
  const texts = trace && !ALONE.includes(state.view)
    ? [h("span", { className: "faint", textContent: trace.model }), " ", trace.source && token(trace.source), trace.target && " → ", trace.target && token(trace.target)]
    : [];
  $("texts").replaceChildren(...texts.filter(Boolean));
  $("texts").hidden = !texts.length;
  const formats = [["svg", "SVG"], ["png", "PNG"], ["html", "HTML page"]];
  const menu = $("export").querySelector(".menu");
  const offer = (path) => menu.replaceChildren(...formats.map(([format, name]) => h("a", {
    href: path(format), download: `regard-${state.view}.${format}`, textContent: name,
  })));
  const unsaved = !alone && UNSAVED.includes(state.view);
  $("export").hidden = state.view !== "explain" && (!trace || unsaved || !trace.maps.length && state.view !== "training");
  if ($("export").hidden) return;
  // A page without a server draws what it shows.
  const save = (format) => saveShown(state.view, format).catch((error) => say(error.message));
  if (alone) return menu.replaceChildren(...formats.slice(0, 2).map(([format, name]) => h("button", { type: "button", textContent: name, "data-focus": `save-${format}`, onclick: () => save(format) })));
  if (state.view === "explain") return offer((format) => explainPath(`/picture/${format}`));
  menu.replaceChildren();
  const { view } = state;
  const mine = ticket;
  const more = await pictured(trace).catch((error) => error);
  if (mine !== ticket) return;
  if (more instanceof Error) menu.replaceChildren(h("span", { className: "faint", textContent: more.message }));
  else offer((format) => pictureAddress(trace, view, format, more));
}

/* ---- keys ---- */

function move(layers, heads) {
  const trace = traceOf(state.trace);
  if (!trace?.maps.length || ALONE.includes(state.view)) return;
  const index = currentMap(trace);
  const map = trace.maps[index];
  if (layers) {
    const same = trace.maps.map((_, i) => i).filter((i) => trace.maps[i].name === map.name);
    same.sort((a, b) => trace.maps[a].layer - trace.maps[b].layer);
    const next = same[same.indexOf(index) + layers];
    if (next !== undefined) set({ map: next });
    return;
  }
  const head = list(state.heads)[0] ?? (heads > 0 ? -1 : map.heads);
  set({ heads: (head + heads + map.heads) % map.heads });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, dialog[open]")) return;
  if (event.key === "?") return $("help").showModal();
  const view = VIEWS[Number(event.key) - 1]?.[0];
  if (view && event.key !== "0" && shown(view, traceOf(state.trace))) return set({ view });
  const act = {
    ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1), ArrowUp: () => move(1, 0), ArrowDown: () => move(-1, 0),
    e: () => catalogue.explains && set({ view: "explain" }), a: () => set({ heads: "" }), t: () => set({ table: state.table === "1" ? "" : "1" }), Escape: () => set({ chosen: "", key: "", node: "" }),
  }[event.key];
  if (!act || event.defaultPrevented) return;
  if (event.key.startsWith("Arrow") && state.view === "overview") return;
  event.preventDefault();
  act();
});

/* ---- start ---- */

const stored = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } }, set: (v) => { try { localStorage.setItem("theme", v); } catch { /* not kept */ } } };
if (["light", "dark"].includes(stored.get())) document.documentElement.dataset.theme = stored.get();
$("theme").onclick = () => {
  const dark = (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  stored.set(document.documentElement.dataset.theme);
  draw();
};
$("help-button").onclick = () => $("help").showModal();
$("skip").onclick = (event) => { event.preventDefault(); $("main").focus(); };
$("trace").onchange = (event) => set({ trace: event.target.value, map: "", heads: "", window: "", chosen: "", beside: "", query: "", key: "", node: "" });
document.addEventListener("click", (event) => { if (!event.target.closest("#export")) $("export").open = false; });
addEventListener("hashchange", () => { readAddress(); draw(); });
addEventListener("popstate", () => { readAddress(); draw(); });
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
// A view that changed what is shown, but not itself.
document.addEventListener("frame", () => { const trace = traceOf(state.trace); frame(trace, VIEWS.filter(([view]) => shown(view, trace))); });
// A trace from this machine, for a page without a server.
async function openTrace(file) {
  if (!file) return;
  const { first } = await (await request(`api/open?${new URLSearchParams({ name: file.name })}`, { method: "POST", body: file })).json();
  await readCatalogue();
  if (!catalogue.traces.some((one) => String(one.id) === String(first))) throw new Error(`${file.name} holds no traces: nothing was recorded into it`);
  set({ trace: first, view: "overview", map: "", heads: "", window: "", chosen: "" });
}
if (here) {
  const opened = (file) => openTrace(file).catch((error) => say(h("span", { className: "alert", role: "alert", textContent: error.message })));
  document.querySelector(".brand").after(...here.chooser(opened));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => { if (!event.defaultPrevented) { event.preventDefault(); opened(event.dataTransfer.files[0]); } });
}
onChange(draw);
readAddress();
say();
readCatalogue().then(async () => {
  const fresh = state.view === "overview" && !location.hash.slice(1) && !catalogue.traces.length && catalogue.model;
  if (fresh) state.view = "ask";
  await draw();
  if (fresh && here) here.example().then(begin).catch((error) => say(error.message));
}).catch((error) => $("main").replaceChildren(h("p", { className: "alert", role: "alert", textContent: error.message })));
