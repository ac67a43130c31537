// Two maps, of one trace or of two, and their difference.
import {
  byChoice, catalogue, currentHeads, currentMap, h, headChips, headsName, largest, leastRange, mapName, mapOptions, number, readout, room, say, select, set, state,
  tableButton, tableOf, token, tools, weights, wordsChoice,
} from "./common.js";
import { heat, scale } from "./map.js";

// Traces with weights; those of long texts have none that could be subtracted.
const comparable = (one) => one && !one.training && !one.long && one.maps.length > 0;

// What is compared: another trace, or the same one, the two maps, and the heads of each.
export function compared(trace) {
  const named = state.trace2 === "" ? trace : catalogue.traces.find((one) => String(one.id) === state.trace2);
  const other = comparable(named) ? named : trace;
  const first = currentMap(trace);
  const second = state.map2 === "" && other.maps[first] ? first : currentMap(other, "map2");
  return { other, first, second, heads: [currentHeads(trace.maps[first]), currentHeads(other.maps[second], state.heads2)] };
}

export async function viewCompare(trace) {
  const { other, first, second, heads } = compared(trace);
  const traces = catalogue.traces.filter(comparable).map((one) => [one.id, (one.name || one.model).slice(0, 60)]);
  const [one, two] = [trace.maps[first], other.maps[second]];
  const bar = [
    tools(h("strong", { textContent: "A" }), select("Map", "map", mapOptions(trace), first), headChips(one)),
    tools(h("strong", { textContent: "B" }), traces.length > 1 && select("Trace", "trace2", traces, other.id, (id) => set({ trace2: id, map2: "", heads2: "" })),
      select("Map", "map2", mapOptions(other), second), headChips(two, "heads2")),
    tools(byChoice(one), wordsChoice(trace), leastRange(), tableButton()),
  ];
  const [a, b] = await Promise.all([weights(trace, first, heads[0]), weights(other, second, heads[1])]);
  const sides = ({ about }) => [about.queries.labels.length, about.keys.labels.length];
  const [[qa, ka], [qb, kb]] = [sides(a), sides(b)];
  say(h("span", { className: "faint", textContent: "Point at a cell of one map to see it in all three." }));
  const equal = qa === qb && ka === kb;
  const max = Math.max(largest(a.values), largest(b.values));
  const across = room() > 1000 ? (equal ? 3 : 2) : 1;
  const each = (room() - 28 * (across - 1)) / across;
  const difference = equal && { ...a, values: a.values.map((value, i) => value - b.values[i]) };
  const most = equal ? largest(difference.values.map(Math.abs)) : 0;
  const drawn = [];
  const mark = (mine) => (place) => {
    drawn.forEach((map, i) => i !== mine && map.mark(place));
    if (place && equal) queueMicrotask(() => tell(place));
  };
  const tell = ([r, c]) => {
    const i = Math.min(Math.floor(r * a.rows / qa), a.rows - 1) * a.columns + Math.min(Math.floor(c * a.columns / ka), a.columns - 1);
    say(token(a.about.queries.labels[r]), " → ", token(a.about.keys.labels[c]), " A ", h("b", { textContent: number(a.values[i], 4) }), " B ", h("b", { textContent: number(b.values[i], 4) }),
      " A − B ", h("b", { textContent: number(a.values[i] - b.values[i], 4) }));
  };
  const options = (name, focus) => ({ room: each, max, least: Number(state.least), name, focus });
  drawn.push(heat(a, { ...options("A", "heat-a"), hover: equal ? mark(0) : undefined }));
  drawn.push(heat(b, { ...options("B", "heat-b"), hover: equal ? mark(1) : undefined }));
  const titles = [`A · ${mapName(one)} · ${headsName(heads[0], one)}`, `B · ${mapName(two)} · ${headsName(heads[1], two)}`];
  const figures = drawn.map((map, i) => h("figure", {}, h("figcaption", {}, h("strong", { textContent: titles[i] })), map.node));
  if (equal) {
    drawn.push(heat(difference, { ...options("A minus B", "heat-d"), max: most, signed: true, hover: mark(2) }));
    let total = 0;
    for (const value of difference.values) total += Math.abs(value);
    const moved = total / 2 / Math.max(a.rows, 1);
    figures.push(h("figure", {}, h("figcaption", {}, h("strong", { textContent: "A − B" }), a.whole !== false && ` – ${number(moved, 2)} of each query's weight lies elsewhere`), drawn[2].node, scale(most, true)));
  } else {
    figures.push(h("p", { className: "alert", textContent: `No difference: A has ${qa} x ${ka} entries, B has ${qb} x ${kb}. Choose maps of the same lengths, such as two heads.` }));
  }
  const table = state.table === "1" && equal && a.whole !== false && tableOf("A − B", a.about.queries.labels, a.about.keys.labels, (r, c) => number(difference.values[r * a.columns + c]));
  const lost = state.trace2 !== "" && String(other.id) !== state.trace2
    && h("p", { className: "alert", role: "alert", textContent: `There is no trace ${state.trace2} to compare with. B is ${other.name || other.model}.` });
  return [lost, ...bar, readout, h("div", { className: "beside" }, figures), table];
}
