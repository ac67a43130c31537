// A mechanism step by step, with sliders for its inputs. Every number is the server's: a slider asks anew.
import { Told, getJson, h, note, number, readout, request, say, set, state, token, tools } from "./common.js";

export const USUAL = "scaled-dot";
const MOST_SLIDERS = 64;

export const explainPath = (more = "") => `api/explain/${encodeURIComponent(state.topic || USUAL)}${more}?${state.given}`;

const capital = (text) => text[0].toUpperCase() + text.slice(1).replaceAll("-", " ");
// A number without zeros at its end.
const short = (value) => String(Number(value.toFixed(6)));

// A slider with its value beside it; `say` is the value as a text.
function range(name, about, { least, most, step }, value, shown, change, focus) {
  const output = h("output", { textContent: shown(value) });
  const input = h("input", {
    type: "range", min: Math.min(least, value), max: Math.max(most, value), step, "aria-label": name, "aria-valuetext": shown(value), title: about, "data-focus": focus,
    oninput: () => { output.textContent = shown(input.valueAsNumber); input.setAttribute("aria-valuetext", shown(input.valueAsNumber)); change(input.valueAsNumber); },
  });
  input.value = value;
  return [input, output];
}

// The sliders of a matrix `1,2;3,4`; of a large one a field.
function matrix({ option, about, value, kind: { matrix: { rows, ...scale } } }, change) {
  const numbers = value.split(";").map((row) => row.split(",").map(Number));
  const text = () => numbers.map((row) => row.map(short).join(",")).join(";");
  if (numbers.flat().length > MOST_SLIDERS) return field(option, about, value, change);
  const lines = numbers.map((row, r) => h("div", { className: "vector" }, h("span", { className: "faint" }, token(rows[r] ?? String(r + 1))),
    row.map((entry, c) => h("span", { className: "entry" }, range(`${option} ${rows[r] ?? r + 1}, entry ${c + 1}`, "", scale, entry, (x) => number(x, 2), (x) => { numbers[r][c] = x; change(text()); }, `control-${option}-${r}-${c}`)))));
  return h("div", { className: "matrix" }, lines);
}

const field = (option, about, value, change) => h("input", { type: "text", value, spellcheck: false, "aria-label": option, title: about, "data-focus": `control-${option}`, onchange: (event) => change(event.target.value) });

// A text with a slider for each number that its usage names: `window:WIDTH` has one for the width.
function written({ option, about, value, kind: { text: { usages } } }, change) {
  const sliders = [];
  for (const found of value.matchAll(/([a-z][a-z-]*)((?::[\d,]+)+)/g)) {
    const parts = usages.find((usage) => usage.startsWith(`${found[1]}:`))?.replace(/[[\].]/g, "").split(":") ?? [];
    for (const digits of found[2].matchAll(/\d+/g)) {
      const part = parts[found[2].slice(0, digits.index).split(":").length - 1]?.replace(/,$/, "");
      if (!part || !/^[A-Z]/.test(part)) continue;
      const at = found.index + found[1].length + digits.index;
      const scale = { least: /POSITION|PLACE|LEFT/.test(part) ? 0 : 1, most: 16, step: 1 };
      const name = `${found[1]} ${part.toLowerCase()}`;
      sliders.push(h("div", { className: "vector" }, h("span", { className: "faint", textContent: part.toLowerCase() }),
        h("span", { className: "entry" }, range(name, "", scale, Number(digits[0]), String, (x) => change(value.slice(0, at) + x + value.slice(at + digits[0].length)), `control-${option}-${at}`))));
    }
  }
  return h("div", { className: "matrix" }, field(option, usages.join("   "), value, change), sliders);
}

const isSingle = ({ kind }) => Boolean(kind.slider || kind.values || kind.choice);

function control(one, change) {
  const { option, about, value, kind } = one;
  const focus = `control-${option}`;
  if (kind.slider) return range(option, about, kind.slider, value === "" ? kind.slider.most : Number(value), (x) => (value === "" && x === kind.slider.most ? "none" : short(x)), (x) => change(short(x)), focus);
  if (kind.values) return range(option, about, { least: 0, most: kind.values.length - 1, step: 1 }, kind.values.indexOf(value), (i) => kind.values[i], (i) => change(kind.values[i]), focus);
  if (kind.choice) return h("select", { "aria-label": option, title: about, "data-focus": focus, onchange: (event) => change(event.target.value) }, kind.choice.map((name) => h("option", { value: name, textContent: name, selected: name === value })));
  return kind.matrix ? matrix(one, change) : written(one, change);
}

export async function viewExplain() {
  const groups = await getJson("api/explain");
  const names = groups.flatMap(({ entries }) => entries.flatMap((entry) => [entry.name, ...entry.aliases]));
  const choose = (topic) => set({ topic, given: "" });
  const topic = state.topic || USUAL;
  const current = groups.flatMap(({ entries }) => entries).find((entry) => entry.name === topic || entry.aliases.includes(topic));
  const chooser = h("select", { id: "topic", "aria-label": "Mechanism", "data-focus": "topic", onchange: (event) => choose(event.target.value) },
    !current && h("option", { textContent: "–", selected: true }),
    groups.map((group) => h("optgroup", { label: group.name }, group.entries.map((entry) => h("option", { value: entry.name, textContent: entry.name, title: entry.about, selected: entry === current })))));
  const find = h("input", { type: "search", id: "find", placeholder: "or a name: bahdanau, rope, …", "aria-label": "Find a mechanism by any of its names", "data-focus": "find" });
  find.setAttribute("list", "names");
  const bar = h("form", { className: "tools", onsubmit: (event) => { event.preventDefault(); if (find.value.trim()) choose(find.value.trim().toLowerCase()); } },
    h("label", {}, "Mechanism ", chooser), find, h("datalist", { id: "names" }, names.map((value) => h("option", { value }))));

  const [controls, results, alert] = [h("div", { className: "controls", role: "group", "aria-label": "Inputs" }), h("div", { className: "worked" }), h("p", { className: "alert", role: "alert", hidden: true })];
  let drawn = [];
  let touched = "";
  let [busy, wanted] = [false, false];
  // One request at a time; of the changes that come meanwhile the last one counts.
  async function ask() {
    wanted = true;
    if (busy) return;
    busy = true;
    while (wanted) {
      wanted = false;
      try {
        show(await (await request(explainPath())).json());
        alert.hidden = true;
      } catch (error) {
        if (!(error instanceof Told)) throw error;
        alert.textContent = error.message;
        alert.hidden = false;
      }
      results.classList.toggle("stale", !alert.hidden);
    }
    busy = false;
    document.body.dataset.answered = String(Number(document.body.dataset.answered ?? 0) + 1);
  }
  const change = (one) => (value) => {
    const given = new URLSearchParams(state.given);
    for (const option of one.replaces) given.delete(option);
    given.set(one.option, value);
    touched = one.option;
    if (value === "") given.delete(one.option);
    set({ given }, false);
    document.dispatchEvent(new Event("frame"));
    ask();
  };
  const reset = (option) => {
    const given = new URLSearchParams(state.given);
    given.delete(option);
    touched = "";
    set({ given }, false);
    document.dispatchEvent(new Event("frame"));
    ask();
  };
  function row(one) {
    const given = new URLSearchParams(state.given).has(one.option);
    const undo = h("button", { type: "button", className: "plain", textContent: "Reset", hidden: !given, "aria-label": `Reset ${one.option}`, "data-focus": `reset-${one.option}`, onclick: () => reset(one.option) });
    const name = h("span", { className: "name", textContent: capital(one.option), title: one.about });
    const node = h("div", { className: `control${isSingle(one) ? "" : " wide"}`, role: "group", "aria-label": one.option }, name, undo, control(one, change(one)));
    return { one, node, undo };
  }
  // The control that is being moved stays as it is; others follow.
  function follow(next) {
    const same = next.length === drawn.length && next.every((one, i) => one.option === drawn[i].one.option);
    if (!same) {
      drawn = next.map(row);
      controls.replaceChildren(...drawn.map(({ node }) => node));
      return;
    }
    const given = new URLSearchParams(state.given);
    drawn = drawn.map((old, i) => {
      if (JSON.stringify(old.one) === JSON.stringify(next[i]) || next[i].option === touched && old.node.contains(document.activeElement) && document.activeElement.type === "range") {
        old.undo.hidden = !given.has(next[i].option);
        return { ...old, one: next[i] };
      }
      const focus = old.node.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
      const made = row(next[i]);
      old.node.replaceWith(made.node);
      if (focus) made.node.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
      return made;
    });
  }
  const again = h("button", { type: "button", textContent: "Reset all", "data-focus": "reset-all", onclick: () => set({ given: "" }) });
  const picture = h("img", { id: "worked", className: "sheet" });
  picture.panel = async () => { await picture.decode(); return { width: picture.naturalWidth, height: picture.naturalHeight, body: drawing }; };
  let drawing = "";
  let address = "";
  function show(found) {
    follow(found.controls);
    again.hidden = !state.given;
    if (address) URL.revokeObjectURL(address);
    drawing = found.svg;
    address = URL.createObjectURL(new Blob([found.svg], { type: "image/svg+xml" }));
    picture.src = address;
    picture.alt = `Picture of ${found.name}: ${found.steps.length ? "its numbers stand in the tables below" : found.remarks.join(" ")}`;
    results.replaceChildren(
      h("h2", {}, found.name, found.source && h("span", { className: "faint", textContent: ` (${found.source})` })),
      h("p", { textContent: found.summary }), h("p", { className: "formula", textContent: found.formula }), picture,
      h("ul", { className: "remarks" }, found.remarks.map((remark) => h("li", { textContent: remark }))),
      h("p", { className: "faint" }, "The same on the command line: ", h("code", { id: "command", textContent: found.command })),
      h("div", { className: "steps" }, found.steps.map(table)));
  }
  try {
    show(await (await request(explainPath())).json());
  } catch (error) {
    if (!(error instanceof Told)) throw error;
    alert.textContent = error.message;
    alert.hidden = false;
  }
  say(h("span", { className: "faint", textContent: "Move a slider: steps and picture are computed again." }));
  return [bar, readout, alert, h("div", { className: "explained" }, h("div", {}, controls, tools(again)), results),
    note("Worked examples are computed by the modules that train and translate, in double precision.")];
}

// The numbers of a step; a hidden cell has none.
function table({ name, formula, columns, rows }) {
  return h("div", { className: "numbers", tabIndex: 0 }, h("table", {}, h("caption", {}, h("strong", { textContent: name }), ` ${formula}`),
    h("thead", {}, h("tr", {}, h("td"), columns.map((column) => h("th", { scope: "col" }, token(column))))),
    h("tbody", {}, rows.map(([label, cells]) => h("tr", {}, h("th", { scope: "row" }, token(label)),
      cells.map((cell) => (cell === null ? h("td", { className: "faint", textContent: "·", "aria-label": "hidden" }) : h("td", { textContent: number(cell, 4) }))))))));
}
