// Ask the model; switch heads off or make them uniform, and see whether the output changes.
import { NOT_EXPLANATION, Told, address, catalogue, colourOf, css, h, here, ink, mapName, note, number, percent, readCatalogue, readout, request, saveButtons, saveTable, say, set, state, token, tools, traceOf } from "./common.js";

// What was sent last, and what the model answered with all heads and with the heads that are changed.
const asked = { image: null, picture: null, sent: null, plain: null, changed: null, changes: "", error: "", busy: "", ranking: null, ranked: [], sets: 0 };
let main = () => {};

// A line for each change: `off 0 1 self`, or `hide:6:2 0 1 self` for the weight of key 2 for query 6. `replace` takes the weights of
// the other text, which the address holds too.
const changesOf = (text) => text.split("\n").filter(Boolean).map((line) => {
  const [what, layer, head, ...map] = line.split(" ");
  const [, query, key] = what.match(/^hide:(\d+):(\d+)$/) ?? [];
  return { change: query ? { hide: { query: Number(query), key: Number(key) } } : what, layer: Number(layer), head: Number(head), map: map.join(" ") };
});
export const lineOf = ({ change, layer, head, map }) => `${change.hide ? `hide:${change.hide.query}:${change.hide.key}` : change} ${layer} ${head} ${map}`;
const nameOf = ({ change, layer, head }) => `layer ${layer + 1} head ${head + 1}: ${change.hide ? `query ${change.hide.query}, key ${change.hide.key}` : change}`;
const ofImages = () => catalogue.model.input.startsWith("image");
// What the model takes of an input: the address may hold more.
function inputOf({ text, target, write, temperature, seed }) {
  const { input, continues } = catalogue.model;
  return {
    text: input === "image" ? "" : text.toWellFormed(), target: input === "source_and_target" ? target.toWellFormed() : "",
    continuation: continues ? { tokens: Number(write) || 0, temperature: Number(temperature) || 0, seed: Number(seed) || 0 } : {},
  };
}
const isSent = () => asked.sent && JSON.stringify(inputOf(asked.sent.input)) === JSON.stringify(inputOf(state));
// Whether a trace is of the last look, with all heads or with changed ones: its answer, or another hypothesis of its search.
const isLast = (trace) => [asked.plain?.trace, asked.changed?.trace].includes(trace.look);
// What to ask for the input of a look again: what was sent last, or what the look says of its text; nothing for another image.
export const again = (trace) => (isLast(trace) ? asked.sent.input : trace.again);

async function look({ input, image }, changes, keep, signal) {
  const other = ofImages() ? { look: Number(state.other) } : { text: state.other.toWellFormed() };
  const ablation = changes.map((one) => (one.change === "replace" ? { ...one, change: { replace: other } } : one));
  const body = new Blob([JSON.stringify({ ...inputOf(input), ablation, keep }), "\n", image ?? ""]);
  return (await request("api/look", { method: "POST", body, signal })).json();
}

// Half of the sum of the changes of all probabilities; without probabilities whether the output is another.
function effect(plain, changed) {
  if (!plain.alternatives.length) return plain.output === changed.output ? 0 : 1;
  // Those of one text count together.
  const [before, after] = [plain, changed].map(({ alternatives }) => alternatives.reduce((all, { text, probability }) => all.set(text, (all.get(text) ?? 0) + probability), new Map()));
  let sum = 0;
  for (const text of new Set([...before.keys(), ...after.keys()])) sum += Math.abs((before.get(text) ?? 0) - (after.get(text) ?? 0));
  return sum / 2;
}

async function busy(what, work) {
  asked.busy = what;
  asked.error = "";
  main();
  try {
    await work();
  } catch (error) {
    if (error.name !== "AbortError") asked.error = error instanceof Told ? error.message : String(error);
  }
  asked.busy = "";
  main();
}

const ask = () => busy("The model is looking …", async () => {
  asked.ranking?.abort();
  set({}, false);
  const { text, target, write, temperature, seed } = state;
  const sent = { input: { text, target, write, temperature, seed }, image: asked.image };
  const plain = await look(sent, [], true);
  Object.assign(asked, { sent, plain, changed: null, changes: "", ranked: [] });
  await readCatalogue();
  set({ trace: plain.trace, map: "", heads: "", window: "", chosen: "" }, false);
  document.dispatchEvent(new Event("frame"));
  await change();
});

function take(image) {
  if (asked.picture) URL.revokeObjectURL(asked.picture.src);
  Object.assign(asked, { image, picture: image && h("img", { src: URL.createObjectURL(image), alt: "" }) });
}

// Asks what nobody has entered.
export function begin({ text, image }) {
  state.text = text;
  take(image);
  return ask();
}

async function change() {
  Object.assign(asked, { changes: state.off, changed: null });
  const ablation = catalogue.model.changes_heads ? changesOf(state.off) : [];
  if (ablation.length) {
    asked.changed = await look(asked.sent, ablation, true);
    await readCatalogue();
    set({ trace2: asked.changed.trace }, false);
    document.dispatchEvent(new Event("frame"));
  }
}

// The effects as a map of layers and heads.
function effects() {
  const maps = traceOf(asked.plain.trace).maps;
  const columns = Math.max(...maps.map((map) => map.heads));
  const values = maps.flatMap((map) => Array.from({ length: columns }, (_, head) => effectOf(map, head) ?? 0));
  return { title: "Effect of each head on the output", labels: [maps.map(mapName), Array.from({ length: columns }, (_, head) => `head ${head + 1}`)], values };
}
const effectOf = (map, head) => asked.ranked.find(({ heads: [one, another] }) => !another && one.map === map.id && one.layer === map.layer && one.head === head)?.effect;

// Every head, or every layer, on its own: how much the output changes without it.
const headsOf = (map, change) => Array.from({ length: map.heads }, (_, head) => ({ change, layer: map.layer, head, map: map.id }));
const rank = (change, whole) => {
  const maps = traceOf(asked.plain.trace).maps;
  const sets = maps.flatMap((map) => (whole ? [headsOf(map, change)] : headsOf(map, change).map((head) => [head])));
  const what = whole ? "layers" : "heads";
  asked.ranking = new AbortController();
  asked.ranked = [];
  asked.sets = sets.length;
  return busy(`0 of ${sets.length} ${what}`, async () => {
    const { signal } = asked.ranking;
    for (const [i, heads] of sets.entries()) {
      const found = await look(asked.sent, heads, false, signal);
      asked.ranked.push({ heads, found, effect: effect(asked.plain, found) });
      asked.busy = `${i + 1} of ${sets.length} ${what}`;
      if (signal.aborted) return;
      main();
    }
  }).finally(() => { asked.ranking = null; main(); });
};

let drawing = false;
export async function viewAsk() {
  const box = h("div", { className: "ask" });
  main = () => { if (state.view === "ask" && box.isConnected) fill(box); };
  fill(box);
  // A link that holds a text is asked again.
  if (!asked.busy && !ofImages() && state.text && !isSent() && !drawing) {
    drawing = true;
    box.addEventListener("shown", () => ask().finally(() => { drawing = false; }));
  } else if (!asked.busy && asked.plain && asked.changes !== state.off) {
    box.addEventListener("shown", () => busy("The model is looking again …", change));
  }
  return [readout, box];
}

function fill(box) {
  const focus = document.activeElement?.dataset?.focus;
  const kind = catalogue.model.input;
  say(h("span", { className: "faint", textContent: asked.busy }));
  const area = (key, label) => h("label", {}, label, h("textarea", {
    rows: 3, value: state[key], "data-focus": key, spellcheck: false,
    oninput: (event) => { state[key] = event.target.value; },
    onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask(); },
  }));
  const fields = [];
  if (kind.startsWith("image")) {
    const chosen = (file) => { take(file); main(); };
    const input = h("input", { type: "file", accept: "image/png,image/jpeg,image/webp", "data-focus": "file", onchange: (event) => chosen(event.target.files[0] ?? null) });
    fields.push(h("label", {
      className: "drop", ondragover: (event) => event.preventDefault(),
      ondrop: (event) => { event.preventDefault(); chosen(event.dataTransfer.files[0] ?? null); },
    }, asked.image ? `Image: ${asked.image.name}` : "Drop an image here, or choose a file ", input, asked.picture));
  }
  if (kind === "text") fields.push(area("text", "Text"));
  if (kind === "source_and_target") fields.push(area("text", "Source"), area("target", "Target"));
  if (kind === "image_and_question") fields.push(area("text", "Question"));
  if (kind === "image_and_labels") fields.push(area("text", "Labels, separated by commas"));
  const amount = (key, label, min, max, step) => h("label", {}, label, h("input", { type: "number", min, max, step, value: state[key], "data-focus": key, oninput: (event) => { state[key] = event.target.value; } }));
  if (catalogue.model.continues) {
    fields.push(h("div", { className: "tools" }, amount("write", "Write on, tokens", 0, 256, 1), amount("temperature", "Temperature (0: the likeliest)", 0, 100, "any"), amount("seed", "Seed", 0, 2 ** 32, 1)));
  }
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); ask(); } }, h("p", { className: "faint", textContent: catalogue.model.name }), fields,
    h("button", { type: "submit", className: "main", textContent: "Look", title: "Ctrl and Enter", disabled: Boolean(asked.busy), "data-focus": "look" }));
  const parts = [form];
  if (asked.error) parts.push(h("p", { className: "alert", role: "alert", textContent: asked.error }));
  if (kind.startsWith("image")) parts.push(kept());
  if (asked.plain) parts.push(answers(), catalogue.model.changes_heads ? matter() : h("p", { className: "faint", id: "unchanged", textContent: "The heads of this model cannot be changed here: it gives its weights alone." }));
  box.replaceChildren(...parts);
  if (focus) box.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
}

// The address holds the number of a look, but no image; without a server nobody else can open it.
function kept() {
  const look = catalogue.traces.find((trace) => trace.asked && String(trace.id) === state.trace);
  if (asked.plain && here) return "";
  if (asked.plain) return h("p", { className: "faint", id: "kept", textContent: `A link cannot hold the image: it opens look ${asked.plain.trace}, while this server runs and keeps it.` });
  if (look) return h("p", { id: "kept" }, `This link is of look ${look.id}, whose image the server has kept: `, h("a", { href: address({ view: "overview" }), textContent: "see what it looked at" }), ".");
  return state.trace === "" ? "" : h("p", { className: "alert", id: "kept", textContent: `Look ${state.trace} is no longer kept: choose the image again.` });
}

const short = (text) => (text.length > 200 ? `${text.slice(0, 200)}…` : text);
// Whether there is nothing to compare.
const silent = ({ output, alternatives }) => !output && !alternatives.length;
const SILENT = "The model gives no output for this input that could be compared. For a model that fills masks, write [MASK] in the place of a word.";

function answers() {
  const one = (title, found, id) => h("section", { className: "answer", id }, h("h2", { textContent: title }),
    h("p", { className: "output" }, token(found.output || "∅")),
    found.alternatives.length > 0 && h("table", {}, h("caption", { className: catalogue.model.continues ? "" : "unseen", textContent: catalogue.model.continues ? "The token after the text" : "Probabilities" }), h("tbody", {}, found.alternatives.slice(0, 8).map((alternative) => h("tr", {},
      h("th", { scope: "row" }, token(short(alternative.text))), h("td", {}, h("i", { className: "meter", style: { width: `${Math.max(120 * alternative.probability, 1)}px` } })),
      h("td", { textContent: percent(alternative.probability) }))))));
  const links = ["overview", "head", "text", "gradient", ...(traceOf(asked.plain.trace)?.image ? ["image"] : []), ...(traceOf(asked.plain.trace)?.searched ? ["generation"] : [])].map((view) => h("a", { href: address({ view, off: "" }), textContent: view[0].toUpperCase() + view.slice(1), onclick: (event) => { event.preventDefault(); set({ view }); } }));
  const compare = asked.changed && h("a", { href: "#", textContent: "Compare with the changed heads", onclick: (event) => { event.preventDefault(); set({ view: "compare" }); } });
  const { cut } = asked.plain;
  return h("div", {}, cut && h("p", { className: "alert", id: "cut", textContent: `The text has ${cut.tokens} tokens; the model has read only the first ${cut.read}.` }),
    h("div", { className: "answers" }, one("All heads", asked.plain, "plain"),
    asked.changed && one(`With ${changesOf(asked.changes).length} ${changesOf(asked.changes).length > 1 ? "changes" : "change"}`, asked.changed, "changed")),
  asked.changed && h("p", { id: "verdict" }, silent(asked.plain) ? SILENT : [asked.plain.output === asked.changed.output ? "The output is the same" : "The output is another",
    asked.plain.alternatives.length ? `; effect ${number(effect(asked.plain, asked.changed))}.` : "."]),
  h("p", { className: "faint" }, "See what it looked at: ", ...links.flatMap((link, i) => [i ? " · " : "", link]), compare && " · ", compare || ""));
}

function matter() {
  const trace = traceOf(asked.plain.trace);
  const changes = changesOf(state.off);
  const names = [...new Set(trace.maps.map((map) => map.id))];
  const ranked = [...asked.ranked].sort((a, b) => b.effect - a.effect);
  const most = ranked[0]?.effect || 1;
  const apply = (next) => {
    set({ off: next.map(lineOf).join("\n") }, false);
    busy("The model is looking again …", change);
  };
  // On, off, uniform, those of the other text if there is one, and on again: one head, or all of a layer.
  const cycle = (map, heads) => {
    const mine = (one) => one.map === map.id && one.layer === map.layer && heads.includes(one.head) && !one.change.hide;
    const now = heads.map((head) => changes.find((one) => mine(one) && one.head === head)?.change);
    const next = now.every((one) => one === now[0]) ? { undefined: "off", off: "uniform", uniform: state.other && "replace" }[now[0]] : "off";
    apply([...changes.filter((one) => !mine(one)), ...(next ? headsOf(map, next).filter((one) => heads.includes(one.head)) : [])]);
  };
  const grids = names.map((name) => {
    const maps = trace.maps.filter((map) => map.id === name).sort((a, b) => a.layer - b.layer);
    return h("section", {}, h("h3", { textContent: maps[0].name }), maps.map((map) => h("div", { className: "switches", role: "group", "aria-label": `layer ${map.layer + 1}` },
      h("button", {
        type: "button", className: "plain layer-switch", textContent: map.layer + 1, title: `All heads of layer ${map.layer + 1}`, disabled: Boolean(asked.busy), "data-focus": `switch-${map.id}-${map.layer}`,
        "aria-label": `all heads of layer ${map.layer + 1}`, onclick: () => cycle(map, Array.from({ length: map.heads }, (_, head) => head)),
      }),
      Array.from({ length: map.heads }, (_, head) => {
        const now = changes.find((one) => one.map === map.id && one.layer === map.layer && one.head === head && !one.change.hide)?.change ?? "on";
        const size = effectOf(map, head);
        const colour = now === "on" && size !== undefined ? colourOf(size / most) : null;
        return h("button", { type: "button", style: colour ? { background: css(colour), color: ink(colour) } : {}, title: size === undefined ? "" : `effect ${number(size)}`, className: `switch ${now}`, textContent: { on: head + 1, uniform: "uni", replace: "other" }[now] ?? now, disabled: Boolean(asked.busy), "data-focus": `switch-${map.id}-${map.layer}-${head}`,
          "aria-label": `layer ${map.layer + 1} head ${head + 1}: ${now}`, onclick: () => cycle(map, [head]) });
      }))));
  });
  const weights = changes.filter((one) => one.change.hide);
  const hidden = weights.length > 0 && h("section", { id: "hidden" }, h("h3", { textContent: "Weights that are hidden" }), h("ul", {}, weights.map((one) => h("li", {}, nameOf(one), " ",
    h("button", { type: "button", className: "plain", textContent: "Restore", "aria-label": `restore ${nameOf(one)}`, disabled: Boolean(asked.busy), "data-focus": `restore-${lineOf(one)}`, onclick: () => apply(changes.filter((other) => other !== one)) })))));
  const plain = asked.plain.output;
  const table = ranked.length > 0 && h("div", { className: "numbers", tabIndex: 0 }, h("table", { id: "ranking" }, h("caption", { textContent: `${ranked[0].heads.length > 1 ? "Layers" : "Heads"} by their effect on the output, each changed alone` }),
    h("thead", {}, h("tr", {}, ["Map", "Layer", "Head", "Effect", "", "Output"].map((name) => h("th", { scope: "col", textContent: name })))),
    h("tbody", {}, ranked.map(({ heads: [head, another], found, effect: size }) => h("tr", {}, h("td", {}, token(head.map)), h("td", { textContent: head.layer + 1 }), h("td", { textContent: another ? "all" : head.head + 1 }),
      h("td", { textContent: number(size) }), h("td", {}, h("i", { className: "meter", style: { width: `${Math.max(90 * size / most, 1)}px` } })),
      h("td", {}, found.output === plain ? h("span", { className: "faint", textContent: "the same" }) : token(short(found.output))))))));
  const saved = ranked.length > 0 && ranked[0].heads.length === 1 && !asked.ranking && effects();
  if (table) table.panel = saved;
  return h("section", { className: "matter" }, h("h2", { textContent: "Does it matter?" }),
    h("p", { className: "faint", textContent: `Click a head, or the number of a layer, to switch it off, again to give every key the same weight, with another ${ofImages() ? "image" : "text"} below again to take its weights, again to restore it. The model answers anew.` }),
    otherInput(changes),
    grids, hidden,
    tools(changes.length > 0 && h("button", { type: "button", className: "plain", textContent: "Restore all", disabled: Boolean(asked.busy), onclick: () => { set({ off: "" }, false); busy("", change); } }),
      silent(asked.plain) ? h("span", { className: "faint", textContent: SILENT }) : [h("button", { type: "button", textContent: "Rank all heads, each off", "data-focus": "rank-off", disabled: Boolean(asked.busy), onclick: () => rank("off") }),
      h("button", { type: "button", textContent: "… each uniform", "data-focus": "rank-uniform", disabled: Boolean(asked.busy), onclick: () => rank("uniform") }),
      state.other && h("button", { type: "button", textContent: `… each with the other ${ofImages() ? "image" : "text"}'s weights`, "data-focus": "rank-replace", disabled: Boolean(asked.busy), onclick: () => rank("replace") }),
      trace.maps.length > 1 && h("button", { type: "button", textContent: "Rank all layers, each off", "data-focus": "rank-layers", disabled: Boolean(asked.busy), onclick: () => rank("off", true) })],
      asked.ranking && h("button", { type: "button", textContent: "Cancel", "data-focus": "cancel", onclick: () => asked.ranking.abort() }),
      asked.ranking && h("progress", { max: 1, value: asked.ranked.length / Math.max(asked.sets, 1), "aria-label": asked.busy }), asked.ranking && h("span", { textContent: asked.busy })),
    table,
    saved && tools(saveButtons((format) => busy("", () => saveTable(saved, format)))),
    note(`${NOT_EXPLANATION} The effect is half the sum of the changes of the listed probabilities (without any, 1 if the output is another): 0 is none, 1 the largest. A head that changes nothing alone may still matter together with others. The weights of another ${ofImages() ? "image" : "text"} are taken by position: each query's over the keys that it may see and that both have, divided by their sum; a query beyond the end of the other keeps its own.`));
}

// Whose weights heads may take: another text, or the image of an earlier look.
function otherInput(changes) {
  const label = `Another ${ofImages() ? "image" : "text"}, whose weights heads may take `;
  const attributes = {
    "data-focus": "other", disabled: Boolean(asked.busy),
    onchange: (event) => { set({ other: event.target.value, off: changes.filter((one) => event.target.value || one.change !== "replace").map(lineOf).join("\n") }, false); busy("The model is looking again …", change); },
  };
  if (!ofImages()) return h("label", { className: "other" }, label, h("input", { type: "text", value: state.other, spellcheck: false, ...attributes }));
  const looks = catalogue.traces.filter((trace) => trace.asked && !isLast(trace));
  const options = [["", "–"], ...looks.map((trace) => [trace.id, `look ${trace.id}: ${trace.name}`.slice(0, 90)])];
  return h("label", { className: "other" }, label, h("select", attributes, options.map(([value, name]) => h("option", { value, textContent: name, selected: String(value) === state.other }))));
}
