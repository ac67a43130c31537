// What a whole stack of layers looked at: rollout and flow beside the raw weights of one layer.
import {
  NOT_EXPLANATION, Told, axes, byChoice, currentHeads, currentMap, getWeights, h, headChips, headsName, largest, mapName, mapOptions, note, number, query, readout, room, saveButtons, saveTable,
  say, select, set, state, token, tools, weights, words, wordsChoice,
} from "./common.js";
import { heat } from "./map.js";
import { tokenList } from "./text.js";

const FOLLOWED = ["encoder.self", "decoder.self", "self"];
export const follows = (map) => FOLLOWED.includes(map.kind);

export async function viewRollout(trace) {
  const index = currentMap(trace, "map", follows);
  const map = trace.maps[index];
  const layers = trace.maps.filter((one) => one.kind === map.kind).length;
  const heads = currentHeads(map);
  const about = await axes(trace, index);
  const labels = about.queries.labels;
  const chosen = Math.min(Number(state.query === "" ? labels.length - 1 : state.query) || 0, labels.length - 1);
  const path = (what, more) => getWeights(`api/trace/${trace.id}/${what}?${query({ map: index, words: words(trace) ? "true" : "", ...more })}`);
  const told = (error) => { if (error instanceof Told) return error.message; throw error; };
  const [raw, joint, flow] = await Promise.all([weights(trace, index, heads), path("rollout").catch(told), path("flow", { query: chosen }).catch(told)]);
  const row = (found) => (typeof found === "string" || found.whole === false ? null : found.rows === 1 ? found.values : found.values.subarray(chosen * labels.length, (chosen + 1) * labels.length));
  const columns = [["Weights", row(raw)], [`Rollout of ${layers} layers`, row(joint)], [`Flow of ${layers} layers`, row(flow)]].filter(([, values]) => values);
  const most = columns.map(([, values]) => largest(values));
  const pick = tokenList(about.queries, "Queries", [chosen], { key: "query", pick: (i) => set({ query: i }) });
  const bar = tools(select("Map", "map", mapOptions(trace).filter(([i]) => follows(trace.maps[i])), index, (value) => set({ map: value })), byChoice(map), wordsChoice(trace), headChips(map),
    typeof joint !== "string" && saveButtons((format) => saveTable({ title: `Rollout of ${layers} layers`, labels: [labels, about.keys.labels], values: joint.values }, format)));
  // Of a long text nothing is known by token.
  const table = columns.length > 0 && h("div", { className: "numbers", tabIndex: 0 }, h("table", { id: "rollout" }, h("caption", {}, "What the query ", token(labels[chosen] ?? "∅"), ` takes from each token · ${mapName(map)}, ${headsName(heads, map)}`),
    h("thead", {}, h("tr", {}, ["Token", "", ...columns.flatMap(([name]) => [name, ""])].map((name) => h("th", { scope: "col", textContent: name })))),
    h("tbody", {}, about.keys.labels.map((label, i) => h("tr", {}, h("th", { scope: "row" }, token(label)), h("td", { className: "faint", textContent: i }),
      columns.flatMap(([, values], c) => [h("td", { textContent: number(values[i], 4) }), h("td", {}, h("i", { className: "meter", style: { width: `${Math.max(90 * values[i] / (most[c] || 1), 1)}px` } }))]))))));
  const across = room();
  const each = across > 900 ? (across - 24) / 2 : across;
  const options = { max: largest([...raw.values, ...(joint.values ?? [])]), room: each };
  const figure = (data, name, focus) => h("figure", {}, h("figcaption", {}, h("strong", { textContent: name })), heat(data, { ...options, name, focus }).node);
  const maps = h("div", { className: "beside" }, figure(raw, `${mapName(map)} · ${headsName(heads, map)}`, "heat-0"),
    typeof joint !== "string" && figure({ ...joint, part: [0, labels.length, 0, labels.length], about }, `Rollout of ${layers} layers`, "heat-1"));
  say(h("span", { className: "faint", textContent: "Choose a query; point at a cell of a map." }));
  return [bar, readout, h("h2", { textContent: `${about.names[0]}: choose` }), pick.box,
    ...[joint, flow].filter((one) => typeof one === "string").map((message) => h("p", { className: "alert", textContent: message })), table, maps,
    note(`Rollout multiplies the layers' mean weights, half of each position's share staying where it is for the residual connection; flow is the most that could pass through the layers (Abnar and Zuidema 2020). Neither knows what values and feed-forward networks do, nor cross-attention. ${NOT_EXPLANATION}`)];
}
