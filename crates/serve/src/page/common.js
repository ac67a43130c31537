// State in the address, requests, colours, and the small parts of which the views are made.
import { $, h, token } from "./elements.js";
import { computing } from "./here.js";
import { answers } from "./recorded.js";

export { $, h, token };

export const number = (value, digits = 3) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size === 0 || size >= 1e-3 ? value.toFixed(digits) : value.toExponential(1);
};
export const percent = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;

/* ---- state ---- */

const DEFAULTS = {
  view: "overview", several: "", trace: "", words: "", map: "", heads: "", by: "mean", sort: "layer", role: "", mode: "map", beside: "",
  window: "", least: "0", chosen: "", direction: "from", trace2: "", map2: "", heads2: "", table: "", overlay: "smooth",
  cells: "max", text: "", target: "", off: "", other: "", pool: "mean", query: "", key: "", order: "", node: "", write: "0", temperature: "0", seed: "0",
  along: "updates", layers: "", topic: "", given: "",
};
export const state = { ...DEFAULTS };
let render = () => {};
export const onChange = (f) => { render = f; };

export function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1) || recorded?.address);
  for (const key in DEFAULTS) state[key] = given.get(key) ?? DEFAULTS[key];
}
export function address(changes = {}) {
  const all = { ...state, ...changes };
  const parts = Object.keys(DEFAULTS).filter((key) => all[key] !== DEFAULTS[key] && all[key] !== undefined);
  return `#${new URLSearchParams(parts.map((key) => [key, all[key]]))}`;
}
// A new view is a step of the history; a changed setting is not.
export function set(changes, draw = true) {
  for (const key in changes) changes[key] = String(changes[key] ?? "");
  const step = changes.view !== undefined && changes.view !== state.view;
  const next = address(changes);
  Object.assign(state, changes);
  history[step ? "pushState" : "replaceState"](null, "", next);
  if (draw) render();
}
export const list = (text) => text.split(",").filter(Boolean).map(Number);
// Numbers as a request names them: those that follow each other as a range, `0-48`.
export function ranges(numbers) {
  const parts = [];
  for (const one of [...numbers].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && one <= last[1] + 1) last[1] = one;
    else parts.push([one, one]);
  }
  return parts.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join();
}

/* ---- requests ---- */

export class Told extends Error {}

async function answer(response) {
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  throw new Told(error);
}
// A page that is a file has the answers beside it; one that computes here asks its worker.
export const recorded = $("recorded") && answers(JSON.parse($("recorded").textContent));
export const here = document.documentElement.dataset.computes === "here" ? computing() : null;
// What answers in place of a server, if there is none: then the page draws its files by itself, too.
export const alone = recorded ?? here;
export const imageAddress = (trace) => alone?.image(trace.id) ?? `api/trace/${trace.id}/image`;
export async function request(path, options) {
  if (alone) return answer(await alone.answer(path, options));
  const response = await fetch(path, options).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Told("the server does not answer: has it been stopped?");
  });
  return answer(response);
}

// Answers about a trace never change, so the last ones are kept.
const kept = new Map();
function cached(path, read) {
  if (kept.has(path)) {
    const value = kept.get(path);
    kept.delete(path);
    kept.set(path, value);
    return value;
  }
  const value = request(path).then(read);
  value.catch(() => kept.delete(path));
  kept.set(path, value);
  if (kept.size > 60) kept.delete(kept.keys().next().value);
  return value;
}
export const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined));
export const getJson = (path) => cached(path, (response) => response.json());
const readWeights = async (response) => ({
  rows: Number(response.headers.get("x-rows")),
  columns: Number(response.headers.get("x-columns")),
  values: new Float32Array(await response.arrayBuffer()),
});
export const getWeights = (path) => cached(path, readWeights);

export const catalogue = { traces: [], model: null, explains: false };
export async function readCatalogue() {
  const read = await (await request("api/traces")).json();
  await here?.follow(read.traces);
  Object.assign(catalogue, read);
}
export const traceOf = (id) => catalogue.traces.find((trace) => String(trace.id) === String(id)) ?? catalogue.traces[0];
export const words = (trace) => (state.words === "" ? trace.pieces : state.words === "1");
export const inWords = (trace) => (words(trace) ? "true" : "");

export const axes = (trace, map, merged = words(trace)) => getJson(`api/trace/${trace.id}/axes?${query({ map, words: merged ? "true" : "" })}`);
export const overview = (trace) =>
  getJson(`api/trace/${trace.id}/overview?${query({ pool: state.pool, words: inWords(trace) })}`);

// The window [q0, q1, k0, k1] of the address, if these axes have it.
export function windowOf({ queries, keys }) {
  const part = list(state.window);
  const [q0, q1, k0, k1] = part;
  const fits = part.length === 4 && q0 >= 0 && q0 < q1 && q1 <= queries.labels.length && k0 >= 0 && k0 < k1 && k1 <= keys.labels.length;
  return fits ? part : undefined;
}

// The weights of a window [q0, q1, k0, k1], pooled if it is large, to cells of `cell` entries; `whole` says that nothing was pooled.
export async function weights(trace, map, heads, part) {
  const about = await axes(trace, map);
  if (trace.long) return longWeights(trace, map, heads, part, about);
  const [q0, q1, k0, k1] = part ?? [0, about.queries.labels.length, 0, about.keys.labels.length];
  const [Q, K] = [about.queries.labels.length, about.keys.labels.length];
  const all = part && (q1 - q0 < Q || k1 - k0 < K) && Q <= 1024 && K <= 1024 ? await weights(trace, map, heads) : null;
  if (all) {
    const values = new Float32Array((q1 - q0) * (k1 - k0));
    for (let q = q0; q < q1; q++) values.set(all.values.subarray(q * K + k0, q * K + k1), (q - q0) * (k1 - k0));
    return { ...all, rows: q1 - q0, columns: k1 - k0, values, part: [q0, q1, k0, k1] };
  }
  const asked = { map, heads, by: state.by === "max" ? "max" : "", words: inWords(trace), pool: "max" };
  if (part) Object.assign(asked, { q0, q1, k0, k1 });
  const found = await getWeights(`api/trace/${trace.id}/window?${query(asked)}`);
  const whole = found.rows === q1 - q0 && found.columns === k1 - k0;
  return { ...found, whole, part: [q0, q1, k0, k1], about };
}

// Of a long text: cells of a power of two tokens, counted from the first token. A request that is still under way is given up: its
// window is no longer looked at.
const underWay = new Map();
async function longWeights(trace, map, heads, part, about) {
  const [Q, K] = [about.queries.labels.length, about.keys.labels.length];
  const [a, b, c, d] = part ?? [0, Q, 0, K];
  const cell = 2 ** Math.max(Math.ceil(Math.log2(Math.max(b - a, d - c) / 1000)), 0);
  const [q0, k0] = [a, c].map((first) => Math.floor(first / cell) * cell);
  const [q1, k1] = [[b, Q], [d, K]].map(([last, length]) => Math.min(Math.ceil(last / cell) * cell, length));
  underWay.get(map)?.abort();
  underWay.set(map, new AbortController());
  const path = `api/trace/${trace.id}/window?${query({ map, heads, pool: state.cells, cell, q0, q1, k0, k1 })}`;
  const found = await readWeights(await request(path, { signal: underWay.get(map).signal }));
  return { ...found, cell, whole: cell === 1, part: [q0, q1, k0, k1], about, lowest: 1 / K };
}

// The weights of the chosen queries (or keys) added up, for each key (or query).
export async function sums(trace, map, heads, chosen, direction) {
  const { queries, keys } = await axes(trace, map);
  const [Q, K] = [queries.labels.length, keys.labels.length];
  if (Q > 1024 || K > 1024) {
    const asked = { map, heads, by: state.by === "max" ? "max" : "", words: inWords(trace), chosen: ranges(chosen), direction };
    return (await getWeights(`api/trace/${trace.id}/sums?${query(asked)}`)).values;
  }
  return added(await weights(trace, map, heads), chosen, direction);
}
// The same from weights that are here.
export function added({ rows, columns, values }, chosen, direction) {
  const out = new Float32Array(direction === "from" ? columns : rows);
  for (const one of chosen) {
    for (let i = 0; i < out.length; i++) out[i] += direction === "from" ? values[one * columns + i] : values[i * columns + one];
  }
  return out;
}

export const pictureAddress = (trace, view, format, more = {}) => `api/trace/${trace.id}/picture?${query({
  view, format, by: state.by === "max" ? "max" : "", words: inWords(trace), ...more,
})}`;

// A map, `{ title, labels: [of rows, of columns], values, signed }`, as a file that the server draws.
export async function saveTable({ title, labels: [rows, columns], values, signed = false }, format) {
  const body = JSON.stringify({ title, rows, columns, values: [...values], format, signed });
  const file = await (await request("api/table", { method: "POST", body })).blob();
  const address = URL.createObjectURL(file);
  download(address, `regard-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.${format}`);
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
export const download = (href, name) => h("a", { href, download: name }).click();
export const saveButtons = (save) => !alone && [h("span", { className: "faint", textContent: "Export" }), [["svg", "SVG"], ["png", "PNG"], ["html", "HTML page"]].map(([format, name]) =>
  h("button", { type: "button", className: "plain", textContent: name, "data-focus": `save-${format}`, onclick: () => save(format) }))];

/* ---- colours ---- */

const RAMPS = {
  light: ["#f4f6f9", "#d6e6f2", "#a9d0e6", "#6db3d6", "#3b90c1", "#1f6ba6", "#164a83", "#0d2b5c"],
  dark: ["#1d232c", "#1c3a50", "#1b5676", "#22779a", "#3c9bb4", "#74bfbf", "#b4dfbc", "#f6f6c2"],
  image: ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"],
};
const BOTH = {
  light: ["#b2500c", "#e08a3c", "#f6c795", "#f4f6f9", "#a9d0e6", "#3b90c1", "#164a83"],
  dark: ["#ffb066", "#c7743a", "#6d4630", "#1d232c", "#1c4a66", "#3c9bb4", "#b4dfe8"],
};
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
// 256 steps of a ramp.
function table(ramp) {
  const stops = ramp.map(channels);
  return Array.from({ length: 256 }, (_, i) => {
    const place = i / 255 * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return stops[low].map((v, c) => Math.round(v + (stops[low + 1][c] - v) * (place - low)));
  });
}
const TABLES = {
  light: table(RAMPS.light), dark: table(RAMPS.dark), image: table(RAMPS.image), lightBoth: table(BOTH.light), darkBoth: table(BOTH.dark),
};
// Those of files.
export const LIGHT = { "": TABLES.light, Both: TABLES.lightBoth, image: TABLES.image };
const system = matchMedia("(prefers-color-scheme: dark)");
export const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
export const colours = (kind = "") => TABLES[kind === "image" ? kind : (isDark() ? "dark" : "light") + kind];
export const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
export const colourOf = (share, kind) => colours(kind)[Math.round(255 * Math.min(Math.max(share, 0), 1))];
export const ink = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#11161d" : "#ffffff");
export const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);
system.addEventListener("change", () => render());

/* ---- controls ---- */

export const select = (label, key, options, value = state[key], change = (v) => set({ [key]: v })) =>
  h("label", {}, `${label} `, h("select", {
    "data-focus": key, onchange: (event) => change(event.target.value),
  }, options.map(([v, name]) => h("option", { value: v, textContent: name, selected: String(v) === String(value) }))));

export const choice = (label, key, options, value = state[key], change = (v) => set({ [key]: v })) =>
  h("div", { className: "choice", role: "group", "aria-label": label }, options.map(([v, name, title]) => h("button", {
    type: "button", textContent: name, title: title ?? "", "aria-pressed": String(v === value), "data-focus": `${key}-${v}`,
    onclick: () => change(v),
  })));

export const tools = (...nodes) => h("div", { className: "tools" }, nodes);

// The pixels that a picture may take across.
export function room() {
  const main = $("main");
  const style = getComputedStyle(main);
  return main.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 2;
}

// One status line for each page: what is hovered, or a hint.
export const readout = h("p", { id: "readout", role: "status", "aria-live": "polite" });
export const say = (...parts) => readout.replaceChildren(...parts);

export const note = (text) => h("p", { className: "note", textContent: text });
export const NOT_EXPLANATION = "Attention is not explanation: a weight says how much was read from a place, not that it changed the output.";

export const mapName = (map) => `${map.name} · layer ${map.layer + 1}`;
export const mapOptions = (trace) => trace.maps.map((map, index) => [index, mapName(map)]);

// The map that the address names, or the usual one: cross-attention if there is any, else the last.
export function currentMap(trace, key = "map", fits = () => true) {
  const named = Number(state[key]);
  if (state[key] !== "" && trace.maps[named] && fits(trace.maps[named])) return named;
  const last = (test) => trace.maps.findLastIndex((map) => test(map) && fits(map));
  const cross = last((map) => map.kind === "decoder.cross");
  return cross >= 0 ? cross : last(() => true);
}
// The chosen heads as far as this map has them.
export const currentHeads = (map, text = state.heads, long = false) => {
  const heads = list(text).filter((head) => head < map.heads);
  return (long ? [heads[0] ?? 0] : heads).join();
};
// The number of a head as people count: of a long text not all heads are kept.
export const headNumber = (map, head) => map.numbers[head] + 1;

// So many heads have a button, and those that are chosen; the others are chosen by their numbers.
const MOST_CHIPS = 64;

export function headChips(map, key = "heads", single = false) {
  const chosen = single ? [list(state[key])[0] ?? 0] : list(state[key]);
  const pick = (head) => (event) => {
    if (single || !event.shiftKey && state.several !== "1") return set({ [key]: head });
    set({ [key]: (chosen.includes(head) ? chosen.filter((one) => one !== head) : [...chosen, head]).sort((a, b) => a - b).join() });
  };
  const few = Math.min(map.heads, MOST_CHIPS);
  const others = chosen.filter((head) => head >= few && head < map.heads).slice(0, MOST_CHIPS);
  const typed = (event) => {
    const head = map.numbers.indexOf(Number(event.target.value) - 1);
    if (head >= 0) pick(head)(event);
  };
  return h("div", { className: "chips", role: "group", "aria-label": "Heads" },
    h("span", { textContent: "Heads" }),
    !single && h("button", { type: "button", textContent: "all", "aria-pressed": String(!chosen.length), "data-focus": `${key}-all`, onclick: () => set({ [key]: "" }) }),
    [...Array(few).keys(), ...others].map((head) => h("button", {
      type: "button", textContent: headNumber(map, head), "aria-pressed": String(chosen.includes(head)), "data-focus": `${key}-${head}`,
      "aria-label": `head ${headNumber(map, head)}`, title: single ? "" : "Shift adds a head", onclick: pick(head),
    })),
    few < map.heads && h("input", {
      type: "number", min: headNumber(map, 0), max: headNumber(map, map.heads - 1), placeholder: `to ${headNumber(map, map.heads - 1)}`, "aria-label": "Another head, by its number", "data-focus": `${key}-number`, onchange: typed,
    }));
}
export const headsName = (text, map) => {
  const heads = list(text);
  const some = heads.length ? `heads ${heads.map((head) => headNumber(map, head)).join(", ")}` : `${map.heads} heads`;
  if (heads.length === 1 || map.heads === 1) return `head ${headNumber(map, heads[0] ?? 0)}`;
  return `${state.by === "max" ? "largest" : "mean"} of ${some}`;
};
export const byChoice = (map) => (map.heads > 1 && list(state.heads).length !== 1
  ? choice("Heads become one by", "by", [["mean", "Mean"], ["max", "Largest"]]) : null);
// Words have other numbers than their pieces, so that what was chosen by number is no longer the same.
export const wordsChoice = (trace) => (trace.pieces
  ? choice("Pieces", "words", [["1", "Words"], ["0", "Subwords"]], words(trace) ? "1" : "0", (v) => set({ words: v, window: "", chosen: "", query: "" })) : null);
export const tableButton = () => h("button", {
  type: "button", className: "plain", textContent: "Table", "aria-pressed": String(state.table === "1"), "data-focus": "table",
  title: "Numbers as a table (t)", onclick: () => set({ table: state.table === "1" ? "" : "1" }),
});

export function leastRange() {
  const output = h("output", { textContent: `${state.least} %` });
  const input = h("input", {
    type: "range", min: 0, max: 100, value: state.least, "data-focus": "least", "aria-label": "Least weight shown, as a share of the largest",
    oninput: () => { output.textContent = `${input.value} %`; },
    onchange: () => set({ least: input.value }),
  });
  return h("label", {}, "Threshold ", input, output);
}

// A table of at most 40 rows and 24 columns; `cell(row, column)` is a text.
export function tableOf(caption, rows, columns, cell) {
  const [R, C] = [Math.min(rows.length, 40), Math.min(columns.length, 24)];
  const cut = R < rows.length || C < columns.length ? ` (the first ${R} of ${rows.length} rows, ${C} of ${columns.length} columns; zoom to see others)` : "";
  return h("div", { className: "numbers", tabIndex: 0 }, h("table", {}, h("caption", { textContent: caption + cut }),
    h("thead", {}, h("tr", {}, h("td"), columns.slice(0, C).map((name) => h("th", { scope: "col" }, token(name))))),
    h("tbody", {}, rows.slice(0, R).map((name, r) => h("tr", {}, h("th", { scope: "row" }, token(name)),
      columns.slice(0, C).map((_, c) => h("td", { textContent: cell(r, c) })))))));
}

// Arrow keys move the focus in a list of buttons, of which one can be reached by Tab; `across` is the number in a row.
export function roving(box, across) {
  const items = [...box.querySelectorAll("[data-item]")];
  items.forEach((item, index) => { item.tabIndex = index === 0 ? 0 : -1; });
  box.addEventListener("focusin", (event) => {
    const item = event.target.closest("[data-item]");
    if (item) items.forEach((one) => { one.tabIndex = one === item ? 0 : -1; });
  });
  box.addEventListener("keydown", (event) => {
    const at = items.indexOf(event.target.closest("[data-item]"));
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -(across?.() ?? 1), ArrowDown: across?.() ?? 1 }[event.key];
    if (at < 0 || !step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    items[Math.min(Math.max(at + step, 0), items.length - 1)].focus();
  });
}
