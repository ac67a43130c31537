// Gradient times attention: how the log probability of the output changes with each weight, times the weight.
import {
  NOT_EXPLANATION, axes, catalogue, currentMap, getJson, getWeights, h, headChips, headNumber, largest, leastRange, list, mapName, mapOptions, note, number, query, readout, room, saveButtons, saveTable, say,
  select, set, state, tableButton, tableOf, token, tools,
} from "./common.js";
import { again, lineOf } from "./ask.js";
import { heat, scale } from "./map.js";

export async function viewGradient(trace) {
  const index = currentMap(trace);
  const map = trace.maps[index];
  const heads = list(state.heads).filter((head) => head < map.heads);
  const about = await axes(trace, index, false);
  const asked = query({ map: index, heads: heads.join() });
  const [{ output, log_probability: logarithm, heads: all }, found] = await Promise.all([getJson(`api/trace/${trace.id}/gradients`), getWeights(`api/trace/${trace.id}/gradient?${asked}`)]);
  const [rows, columns] = [about.queries.labels, about.keys.labels];
  const max = largest(found.values.map(Math.abs));
  const chosen = heads.length === 1 || map.heads === 1 ? `head ${headNumber(map, heads[0] ?? 0)}` : `sum of ${heads.length || map.heads} heads`;
  const name = `${mapName(map)}, ${chosen}`;
  const bar = tools(
    select("Map", "map", mapOptions(trace), index), leastRange(), tableButton(), scale(max, true), headChips(map),
    saveButtons((format) => saveTable({ title: `Gradient times attention, ${name}`, labels: [rows, columns], values: found.values, signed: true }, format)));
  say(h("span", { className: "faint", textContent: "Point at a cell, or use the arrow keys. Blue raises the output's log probability, orange lowers it." }));
  const data = { ...found, whole: true, part: [0, rows.length, 0, columns.length], about };
  const picture = heat(data, { room: room(), max, signed: true, least: Number(state.least), name: `Gradient times attention, ${name}`, focus: "heat-0" });
  const numbers = state.table === "1" && tableOf(`Gradient times attention, ${name}`, rows, columns, (r, c) => number(found.values[r * found.columns + c], 4));

  const ranked = [...all].sort((a, b) => Math.abs(b.sum) - Math.abs(a.sum));
  const most = largest(ranked.map((one) => Math.abs(one.sum)));
  const same = catalogue.model.changes_heads && again(trace);
  const off = (one) => set({ view: "ask", ...same, off: lineOf({ change: "off", layer: trace.maps[one.map].layer, head: one.head, map: trace.maps[one.map].id }) });
  const ranking = h("div", { className: "numbers", tabIndex: 0 }, h("table", { id: "gradients" }, h("caption", { textContent: "Heads by the sum of their gradient times attention" }),
    h("thead", {}, h("tr", {}, ["Map", "Layer", "Head", "Sum", "", ""].map((one) => h("th", { scope: "col", textContent: one })))),
    h("tbody", {}, ranked.map((one) => h("tr", {}, h("td", {}, token(trace.maps[one.map].name)), h("td", { textContent: trace.maps[one.map].layer + 1 }),
      h("td", {}, h("button", { type: "button", className: "plain", textContent: one.head + 1, "data-focus": `gradient-${one.map}-${one.head}`, "aria-label": `show ${mapName(trace.maps[one.map])} head ${one.head + 1}`, onclick: () => set({ map: one.map, heads: one.head }) })),
      h("td", { textContent: number(one.sum, 4) }), h("td", {}, h("i", { className: "meter", style: { width: `${Math.max(90 * Math.abs(one.sum) / (most || 1), 1)}px` } })),
      h("td", {}, same && h("button", { type: "button", className: "plain", textContent: "Switch off", "aria-label": `switch off ${mapName(trace.maps[one.map])} head ${one.head + 1}`, onclick: () => off(one) })))))));
  return [bar, readout, h("p", { id: "output" }, "Of the output ", token(output || "∅"), `, whose log probability is ${number(logarithm, 4)}`),
    h("figure", {}, h("figcaption", {}, h("strong", { textContent: name })), picture.node, numbers), ranking,
    note(`A cell is the weight times the gradient of the output's log probability by this weight alone: the other weights of its row stay as they are, so that the row no longer sums to 1. It is what the output would lose without the weight if the log probability were linear in it. The sum of a head estimates in the same way what switching it off does (Michel et al. 2019). ${NOT_EXPLANATION}`)];
}
