// Every head of every layer, small, with what it does in words.
import { NOT_EXPLANATION, choice, colours, h, headNumber, note, number, overview, readout, roving, say, select, set, state, tableButton, tools, wordsChoice } from "./common.js";

// Key, name, explanation, whether the largest comes first.
export const MEASURES = [
  ["entropy", "Entropy", "mean entropy of a row, in nats", false],
  ["uniformity", "Uniformity", "entropy as a share of the largest possible", false],
  ["distance", "Distance", "mean distance between a query and what it looks at, in positions", true],
  ["largest_weight", "Largest weight", "mean of each row's largest weight", true],
  ["effective_keys", "Effective keys", "how many keys a row looks at, e to the entropy", false],
  ["effective_span", "Span", "neighbouring keys that hold 90 % of a row", false],
  ["diagonality", "Diagonality", "weight near the diagonal, 0 to 1", true],
  ["first_token", "First token", "mean weight of the first key", true],
  ["previous_token", "Previous token", "mean weight of the token before", true],
  ["duplicate_token", "Duplicate token", "mean weight of earlier tokens of the same text", true],
  ["coverage", "Coverage", "share of the keys that were looked at", true],
];

export async function viewOverview(trace) {
  const seen = await overview(trace);
  const heads = trace.maps.flatMap((map, index) => seen[index].heads.map((head, number) => ({ ...head, map, index, number })));
  const counts = new Map();
  heads.filter((head) => head.role).forEach((head) => counts.set(head.role, (counts.get(head.role) ?? 0) + 1));
  const names = [...new Set(trace.maps.map((map) => map.name))];
  const measure = MEASURES.find(([key]) => key === state.sort);

  const roles = h("div", { className: "chips", role: "group", "aria-label": "What heads do" },
    [...counts].sort((a, b) => b[1] - a[1]).map(([role, count]) => h("button", {
      type: "button", "aria-pressed": String(state.role === role), "data-focus": `role-${role}`,
      onclick: () => set({ role: state.role === role ? "" : role }),
    }, role, " ", h("span", { className: "count", textContent: count }))));
  const bar = tools(
    select("Order", "sort", [["layer", "by layer"], ...MEASURES.map(([key, name]) => [key, `by ${name.toLowerCase()}`])]),
    choice("Cells are pooled by", "pool", [["mean", "Mean", "each small cell is the mean of its weights"], ["max", "Largest", "each small cell is the largest of its weights"]]),
    wordsChoice(trace), tableButton(), roles);
  say(h("span", { className: "faint", textContent: `${heads.length} heads. Choose one to see its map; arrow keys move, Enter opens.` }));

  if (state.table === "1") return [bar, readout, numbers(heads, measure)];
  const figure = h("div", { className: "heads" });
  if (measure) {
    figure.append(h("div", { className: "sorted" }, ordered(heads, measure).map((head) => cell(head, number(head[measure[0]], 2)))));
  } else {
    for (const name of names) {
      const layers = trace.maps.map((map, index) => ({ map, index })).filter(({ map }) => map.name === name).sort((a, b) => a.map.layer - b.map.layer);
      const grid = h("div", { className: "layers" });
      for (const { map, index } of layers) {
        grid.append(h("div", { className: "layer" }, h("span", { className: "which", textContent: map.layer + 1, title: `layer ${map.layer + 1}` }),
          h("div", { className: "row" }, heads.filter((head) => head.index === index).map((head) => cell(head)))));
      }
      figure.append(h("section", {}, h("h2", {}, name, h("span", { className: "faint", textContent: ` · ${layers.length} ${layers.length === 1 ? "layer" : "layers"} down, heads across` })), grid));
    }
  }
  const across = () => {
    const items = [...figure.querySelectorAll("[data-item]")];
    const first = items[0]?.getBoundingClientRect().top;
    const next = items.findIndex((item) => item.getBoundingClientRect().top > first + 4);
    return next < 0 ? items.length : next;
  };
  roving(figure, across);
  return [bar, readout, figure, note(NOT_EXPLANATION)];
}

const ordered = (heads, measure) => (measure
  ? [...heads].sort((a, b) => (b[measure[0]] === null ? -1 : a[measure[0]] === null ? 1 : (measure[3] ? 1 : -1) * (b[measure[0]] - a[measure[0]])))
  : heads);

function cell(head, value) {
  const canvas = h("canvas", { width: Math.max(head.columns, 1), height: Math.max(head.rows, 1), "aria-hidden": "true" });
  const ramp = colours();
  const image = new ImageData(canvas.width, canvas.height);
  for (let i = 0; i < head.rows * head.columns; i++) image.data.set([...ramp[parseInt(head.small.substr(2 * i, 2), 16)], 255], 4 * i);
  canvas.getContext("2d").putImageData(image, 0, 0);
  const share = (i) => parseInt(head.small.substr(2 * i, 2), 16) / 255;
  const values = Array.from({ length: head.rows * head.columns }, (_, i) => share(i));
  canvas.panel = { title: `${head.map.layer + 1}·${headNumber(head.map, head.number)} ${head.role}`, rows: head.rows, columns: head.columns, values, max: 1 };
  const text = `${head.map.name}, ${head.text}`;
  const tell = () => say(text);
  return h("a", {
    className: `head${state.role && state.role !== head.role ? " dim" : ""}`, href: "#", "data-item": "", "data-focus": `cell-${head.index}-${head.number}`,
    "aria-label": text, onfocus: tell, onmouseenter: tell,
    onclick: (event) => {
      event.preventDefault();
      set({ view: "head", map: head.index, heads: head.number, window: "" });
    },
  }, canvas, value !== undefined && h("b", { textContent: value }), h("span", { className: "badge", textContent: value === undefined ? head.role || `head ${headNumber(head.map, head.number)}` : `${head.map.layer + 1}·${headNumber(head.map, head.number)} ${head.role}` }));
}

function numbers(heads, measure) {
  const shown = ordered(heads.filter((head) => !state.role || head.role === state.role), measure);
  return h("div", { className: "numbers", tabIndex: 0 }, h("table", {}, h("caption", { textContent: "Every head, by the numbers" }),
    h("thead", {}, h("tr", {}, ["Map", "Layer", "Head", "What it does"].map((name) => h("th", { scope: "col", textContent: name })),
      MEASURES.map(([key, name, why]) => h("th", { scope: "col", title: why, "aria-sort": key === state.sort ? "descending" : "none" },
        h("button", { type: "button", className: "plain", textContent: name, onclick: () => set({ sort: key }), "data-focus": `sort-${key}` }))))),
    h("tbody", {}, shown.map((head) => h("tr", {}, h("td", { textContent: head.map.name }), h("td", { textContent: head.map.layer + 1 }), h("td", { textContent: headNumber(head.map, head.number) }),
      h("td", { textContent: head.role, title: head.text }), MEASURES.map(([key]) => h("td", { textContent: number(head[key], 2) })))))));
}
