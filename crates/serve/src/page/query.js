// One query of one head with its keys: products dimension by dimension, scores, mask, weights, values; the model's own numbers.
import {
  NOT_EXPLANATION, axes, catalogue, choice, colourOf, colours, css, currentMap, getJson, h, largest, list, mapName, mapOptions, note, number, query, readout, roving, saveButtons, saveTable, say,
  select, set, state, token, tools,
} from "./common.js";
import { again, lineOf } from "./ask.js";
import { scale } from "./map.js";
import { tokenList } from "./text.js";

const product = (a, b) => a.map((x, i) => x * b[i]);
const sum = (values) => values.reduce((all, value) => all + value, 0);
const greatest = (values) => largest(values.map(Math.abs));

// A cell for each dimension, from -most to most; a screen reader gets its range.
function strip(values, most, name) {
  const canvas = h("canvas", { className: "strip", width: values.length, height: 1, role: "img" });
  const first = values.findIndex((value) => Math.abs(value) === greatest(values));
  canvas.setAttribute("aria-label", `${name}: ${values.length} dimensions, the largest ${number(values[first] ?? 0)} in dimension ${first + 1}`);
  canvas.style.width = `${Math.min(Math.max(values.length * 4, 96), 320)}px`;
  const context = canvas.getContext("2d");
  const image = new ImageData(values.length, 1);
  const ramp = colours("Both");
  values.forEach((value, i) => image.data.set([...ramp[Math.round(127.5 * (1 + Math.max(Math.min(value / (most || 1), 1), -1)))], 255], 4 * i));
  context.putImageData(image, 0, 0);
  canvas.addEventListener("pointermove", (event) => {
    const { left, width } = canvas.getBoundingClientRect();
    const i = Math.min(Math.max(Math.floor((event.clientX - left) / width * values.length), 0), values.length - 1);
    say(`${name}, dimension ${i + 1} `, h("b", { textContent: number(values[i], 4) }));
  });
  return canvas;
}

// A bar to the left or right of the middle.
const bar = (value, most) => h("i", { className: "signed" }, h("i", { style: {
  background: css(colourOf(value < 0 ? 0.1 : 0.85, "Both")), width: `${50 * Math.abs(value) / (most || 1)}%`, [value < 0 ? "right" : "left"]: "50%",
} }));

export async function viewQuery(trace) {
  const index = currentMap(trace);
  const map = trace.maps[index];
  const head = Math.min(list(state.heads)[0] ?? 0, map.heads - 1);
  const about = await axes(trace, index, false);
  const labels = { queries: about.queries.labels, keys: about.keys.labels };
  const chosen = Math.min(Number(state.query === "" ? map.queries - 1 : state.query) || 0, map.queries - 1);
  const found = await getJson(`api/trace/${trace.id}/query?${query({ map: index, head, query: chosen })}`);
  const keys = found.keys.map((one) => {
    const products = product(found.query, one.key);
    return { ...one, products, dot: sum(products), label: labels.keys[one.position] };
  });
  if (state.order === "weight") keys.sort((a, b) => b.weight - a.weight || a.position - b.position);
  const top = keys.reduce((best, one) => (best && best.weight >= one.weight ? best : one), null);
  const picked = keys.find((one) => String(one.position) === state.key) ?? top;

  const queries = tokenList(about.queries, "Queries", [chosen], { key: "query", pick: (i) => set({ query: i, key: "" }) });
  const name = `${mapName(map)} · head ${head + 1}`;
  const products = {
    title: `Products of ${labels.queries[chosen]} with its keys`, labels: [keys.map((one) => one.label), found.query.map((_, i) => String(i + 1))],
    values: keys.flatMap((one) => one.products), signed: true,
  };
  const controls = tools(
    select("Map", "map", mapOptions(trace), index, (value) => set({ map: value, query: "", key: "" })),
    select("Head", "heads", Array.from({ length: map.heads }, (_, i) => [i, i + 1]), head),
    choice("Order", "order", [["", "In order"], ["weight", "Largest weight first"]], state.order === "weight" ? "weight" : ""), saveButtons((format) => saveTable(products, format)));

  const most = { products: greatest(products.values), values: greatest(keys.flatMap((one) => one.value)), weight: largest(keys.map((one) => one.weight)) };
  const cap = found.softcap === null ? "" : `, bent into ±${number(found.softcap, 0)} by c tanh(s / c)`;
  const bent = (dot) => (found.softcap === null ? dot * found.scale : found.softcap * Math.tanh(dot * found.scale / found.softcap));
  const biased = keys.some((one) => one.score !== null && Math.abs(bent(one.dot) - one.score) > 1e-3 * Math.max(1, Math.abs(one.score)));
  const table = h("table", { id: "keys" }, h("caption", {}, name, ": the query ", token(labels.queries[chosen]), ` against ${keys.length < found.of ? `the ${keys.length} of ${found.of} keys with the largest weights` : `${found.of} keys`}`),
    h("thead", {}, h("tr", {}, ["Key", "", "q × k, dimension by dimension", "q · k", "Score", "Weight", "", "Value"].map((one) => h("th", { scope: "col", textContent: one })))),
    h("tbody", {}, keys.map((one) => h("tr", { className: one === picked ? "picked" : "" },
      h("th", { scope: "row" }, h("button", {
        type: "button", className: "plain", "data-item": "", "data-focus": `key-${one.position}`, "aria-pressed": String(one === picked), onclick: () => set({ key: one.position }),
      }, token(one.label))),
      h("td", { className: "faint", textContent: one.position }), h("td", {}, strip(one.products, most.products, "q × k")), h("td", { textContent: number(one.dot) }),
      h("td", {}, one.score === null ? h("span", { className: "faint", textContent: "hidden" }) : number(one.score)),
      h("td", { textContent: number(one.weight, 4) }), h("td", {}, h("i", { className: "meter", style: { width: `${Math.max(90 * one.weight / (most.weight || 1), 1)}px` } })),
      h("td", {}, strip(one.value, most.values, "value"))))),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row", textContent: "Read: the sum of weight × value" }), h("td", { colSpan: 6 }), h("td", {}, strip(found.context, greatest(found.context), "read")))));
  table.panel = products;
  roving(table);

  let detail = null;
  if (picked) {
    const read = picked.value.map((value) => value * picked.weight);
    const sizes = { q: greatest(found.query), k: greatest(picked.key), p: greatest(picked.products), v: greatest(picked.value) };
    const cells = (value, size) => [h("td", { textContent: number(value) }), h("td", {}, bar(value, size))];
    const same = again(trace);
    // The rows of a detector are the objects that it finds with all heads as they are.
    const there = catalogue.model.changes_heads && same && !(trace.changed && about.queries.boxes);
    const hide = () => {
      const line = lineOf({ change: { hide: { query: chosen, key: picked.position } }, layer: map.layer, head, map: map.id });
      set({ view: "ask", ...same, off: [...new Set([...state.off.split("\n").filter(Boolean), line])].join("\n") });
    };
    detail = h("section", {}, h("h2", {}, token(labels.queries[chosen]), " and ", token(picked.label), h("span", { className: "faint", textContent: " by dimension" })),
      there && picked.weight > 0 && h("p", {}, h("button", { type: "button", textContent: "Does it matter? Hide this weight", "data-focus": "hide", title: "Ask again without this weight, the others of its row renormalised", onclick: hide })),
      h("div", { className: "numbers", tabIndex: 0 }, h("table", { id: "dimensions" }, h("caption", { className: "unseen", textContent: "Query, key, product and value by dimension" }),
        h("thead", {}, h("tr", {}, ["", "Query", "", "Key", "", "q × k", "", "Value", "", "Weight × value"].map((one) => h("th", { scope: "col", textContent: one })))),
        h("tbody", {}, found.query.map((q, i) => h("tr", {}, h("th", { scope: "row", textContent: i + 1 }), ...cells(q, sizes.q), ...cells(picked.key[i], sizes.k), ...cells(picked.products[i], sizes.p),
          ...cells(picked.value[i], sizes.v), h("td", { textContent: number(read[i]) })))))));
    say(token(labels.queries[chosen]), " → ", token(picked.label), " q · k ", h("b", { textContent: number(picked.dot) }), ` × ${number(found.scale)} = `, h("b", { textContent: number(picked.dot * found.scale) }),
      " score ", h("b", { textContent: picked.score === null ? "hidden" : number(picked.score) }), " weight ", h("b", { textContent: number(picked.weight, 4) }));
  } else say();
  return [controls, readout, h("h2", {}, `${about.names[0]}: choose`), queries.box,
    h("div", { className: "query" }, h("div", { className: "numbers", tabIndex: 0 }, table, h("p", { className: "faint" }, "q × k ", scale(most.products, true), " value ", scale(most.values, true))), detail),
    note(`Numbers of ${catalogue.model.name} as its attention multiplies them: after norms and rotary positions. Score = q · k × ${number(found.scale, 4)}${cap}${biased ? ", plus a bias for the distance" : ""}; the weights are the softmax of the scores that are not hidden. ${NOT_EXPLANATION}`)];
}
