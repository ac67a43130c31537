// The tree of a search: what the model proposed at every step, what was gone on with, and the map of each hypothesis.
import {
  LIGHT, NOT_EXPLANATION, choice, colourOf, css, currentHeads, currentMap, download, getJson, h, headChips, headsName, ink, largest, list, mapName, mapOptions, note, number, percent, query, readout, room, saveButtons, say, select, set, state,
  token, tools, weights, wordsChoice,
} from "./common.js";
import { escaped } from "./drawn.js";
import { heat } from "./map.js";

const [HIGH, WIDE, GAP] = [30, 112, 34];

// Depth, place in its column, and path of every proposal that is shown.
function layout(proposals, all) {
  const depth = proposals.map(() => 0);
  const columns = [];
  proposals.forEach((one, i) => {
    depth[i] = one.parent === null ? 0 : depth[one.parent] + 1;
    if (all || one.taken) (columns[depth[i]] ??= []).push(i);
  });
  const row = new Map();
  for (const column of columns) {
    column.sort((a, b) => (row.get(proposals[a].parent) ?? 0) - (row.get(proposals[b].parent) ?? 0) || proposals[b].probability - proposals[a].probability);
    column.forEach((i, place) => row.set(i, place));
  }
  return { columns, row };
}

export async function viewGeneration(trace) {
  const { proposals, hypotheses } = await getJson(`api/trace/${trace.id}/generation`);
  const shown = hypotheses.findIndex((one) => one.trace === trace.id);
  const path = (leaf) => {
    const nodes = [];
    for (let i = leaf; i !== null && i !== undefined; i = proposals[i].parent) nodes.unshift(i);
    return nodes;
  };
  const ends = new Map(hypotheses.map((one, rank) => [one.leaf, rank]));
  const best = new Set(hypotheses[shown] ? path(hypotheses[shown].leaf) : []);
  const all = state.order === "all" || (state.order !== "taken" && hypotheses.length < 2);
  const { columns, row } = layout(proposals, all);
  const chosen = proposals[Number(state.node)] && state.node !== "" ? Number(state.node) : null;
  const children = (parent) => proposals.map((_, i) => i).filter((i) => proposals[i].parent === parent);
  const before = (i) => path(proposals[i].parent).map((one) => proposals[one].text).join("").replaceAll("␣", " ").trim();

  const most = Math.max(0, ...columns.map((column) => column.length));
  const canvas = { width: columns.length * (WIDE + GAP), height: most * HIGH };
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("width", canvas.width);
  svg.setAttribute("height", canvas.height);
  const nodes = columns.flatMap((column, depth) => column.map((i) => {
    const one = proposals[i];
    const [x, y] = [depth * (WIDE + GAP), row.get(i) * HIGH];
    if (row.has(one.parent)) {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const [x0, y0, y1] = [x - GAP, row.get(one.parent) * HIGH + HIGH / 2, y + HIGH / 2];
      line.setAttribute("d", `M${x0} ${y0}C${x0 + GAP / 2} ${y0} ${x - GAP / 2} ${y1} ${x} ${y1}`);
      line.setAttribute("class", best.has(i) ? "best" : one.taken ? "taken" : "");
      svg.append(line);
    }
    const colour = colourOf(0.85 * one.probability);
    const fate = ends.has(i) ? `ends hypothesis ${ends.get(i) + 1}` : one.taken ? "taken" : "left";
    return h("button", {
      type: "button", "data-item": "", "data-node": i, "data-focus": `node-${i}`, className: `proposal ${best.has(i) ? "best" : one.taken ? "taken" : "left"}${ends.has(i) ? " end" : ""}`,
      style: { left: `${x}px`, top: `${y + 2}px`, width: `${WIDE}px`, background: css(colour), color: ink(colour) }, "aria-pressed": String(i === chosen),
      "aria-label": `${one.text} ${percent(one.probability)}, step ${depth + 1}, ${fate}`, title: `after: ${before(i).slice(-120) || "the beginning"}`,
      onclick: () => set({ node: i }), onfocus: () => tell(i), onmouseenter: () => tell(i),
    }, token(one.text), h("span", { textContent: percent(one.probability) }));
  }));
  const tell = (i) => say(h("span", { className: "faint", textContent: before(i).slice(-160) }), " ", token(proposals[i].text), " ", h("b", { textContent: percent(proposals[i].probability) }),
    ends.has(i) ? ` ends hypothesis ${ends.get(i) + 1}` : "");
  const tree = h("div", { className: "tree", role: "group", "aria-label": "Tree of the search: a column for each step" }, h("div", { style: { width: `${canvas.width}px`, height: `${canvas.height}px` } }, svg, nodes));
  tree.panel = { ...canvas, body: nodes.map((node, at) => drawnNode(proposals, columns.flat()[at], node, row, best)).join("") };
  // Right to the likeliest child, left to the parent, up and down within a step.
  const button = (i) => tree.querySelector(`[data-node="${i}"]`);
  nodes.forEach((node, i) => { node.tabIndex = i === 0 ? 0 : -1; });
  tree.addEventListener("focusin", (event) => { nodes.forEach((node) => { node.tabIndex = node === event.target ? 0 : -1; }); });
  tree.addEventListener("keydown", (event) => {
    const i = Number(event.target.dataset.node);
    if (event.ctrlKey || event.metaKey || event.altKey || !event.key.startsWith("Arrow") || !proposals[i]) return;
    event.preventDefault();
    event.stopPropagation();
    const column = columns.find((one) => one.includes(i));
    const at = column.indexOf(i);
    const next = { ArrowLeft: proposals[i].parent, ArrowRight: children(i).find((child) => row.has(child)), ArrowUp: column[at - 1], ArrowDown: column[at + 1] }[event.key];
    if (next !== undefined && next !== null) button(next)?.focus();
  });

  const after = children(chosen);
  const step = !after.length ? chosen !== null && h("p", { className: "faint", textContent: ends.has(chosen) ? "A hypothesis ends here." : "The search did not go on from here." }) : h("section", {}, h("h2", {}, "Proposed ", chosen === null ? "first" : ["after ", token(`${before(chosen)} ${proposals[chosen].text}`.trim().slice(-80))]),
    h("table", { id: "proposed" }, h("caption", { className: "unseen", textContent: "Proposals with their probabilities" }), h("tbody", {}, after.map((i) => h("tr", {}, h("th", { scope: "row" }, token(proposals[i].text)),
      h("td", {}, h("i", { className: "meter", style: { width: `${Math.max(120 * proposals[i].probability, 1)}px` } })), h("td", { textContent: percent(proposals[i].probability) }),
      h("td", { className: "faint", textContent: ends.has(i) ? `ends hypothesis ${ends.get(i) + 1}` : proposals[i].taken ? "taken" : "" }))))));
  const scored = hypotheses.some((one) => one.score !== null);
  const texts = h("section", {}, h("h2", { textContent: hypotheses.length > 1 ? "Hypotheses, the best first" : "What was written" }),
    h("table", { id: "hypotheses" }, h("caption", { className: "unseen", textContent: "Choose one to see its map" }),
      h("thead", {}, h("tr", {}, ["", ...(scored ? ["Score"] : []), "Tokens", "Text"].map((name) => h("th", { scope: "col", textContent: name })))),
      h("tbody", {}, hypotheses.map((one, rank) => h("tr", { className: rank === shown ? "picked" : "" }, h("th", { scope: "row", textContent: rank + 1 }), scored && h("td", { textContent: number(one.score) }),
        h("td", { textContent: path(one.leaf).length }),
        h("td", {}, h("button", { type: "button", className: "plain", "aria-pressed": String(rank === shown), "data-focus": `hypothesis-${rank}`, onclick: () => set({ trace: one.trace, window: "", chosen: "" }) }, token(one.text || "∅"))))))));

  const map = trace.maps.length > 0 && await mapOf(trace);
  say(h("span", { className: "faint", textContent: "Choose a token to see what was proposed after it; choose a hypothesis to see its map." }));
  const save = (format) => download(`api/trace/${trace.id}/generation/picture?${query({ format, all: all ? "true" : "" })}`, `regard-generation.${format}`);
  return [tools(choice("Tokens", "order", [["taken", "Taken"], ["all", "All proposals"]], all ? "all" : "taken"), saveButtons(save),
    chosen !== null && h("button", { type: "button", className: "plain", textContent: "From the beginning", "data-focus": "node-none", onclick: () => set({ node: "" }) })),
  readout, tree, h("div", { className: "found" }, texts, step), map,
  note(`A column for each step; the colour is the probability of a token after those before it. The darker lines lead to the hypothesis whose map is shown. ${NOT_EXPLANATION}`)];
}

// The map of the chosen hypothesis.
async function mapOf(trace) {
  const index = currentMap(trace);
  const map = trace.maps[index];
  const heads = currentHeads(map);
  const panel = await weights(trace, index, heads);
  const drawn = heat(panel, { room: room(), max: largest(panel.values), name: `${mapName(map)}, ${headsName(heads, map)}`, focus: "heat-0" });
  return h("section", {}, tools(select("Map", "map", mapOptions(trace), index, (value) => set({ map: value })), wordsChoice(trace), headChips(map)),
    h("figure", {}, h("figcaption", {}, h("strong", { textContent: `${mapName(map)} · ${headsName(list(heads).join(), map)}` })), drawn.node));
}

// A proposal as a part of an SVG.
function drawnNode(proposals, i, node, row, best) {
  const { text, parent, probability, taken } = proposals[i];
  const [x, y] = [parseFloat(node.style.left), row.get(i) * HIGH];
  const [r, g, b] = LIGHT[""][Math.round(0.85 * 255 * probability)];
  const stroke = best.has(i) ? 'stroke="#1f6ba6" stroke-width="2"' : taken ? 'stroke="#5b6876"' : 'stroke="#dde3ea"';
  const [y0, y1] = [row.get(parent) * HIGH + HIGH / 2, y + HIGH / 2];
  const line = row.has(parent) ? `<path d="M${x - GAP} ${y0}C${x - GAP / 2} ${y0} ${x - GAP / 2} ${y1} ${x} ${y1}" fill="none" ${stroke}/>` : "";
  return `${line}<rect x="${x}" y="${y + 2}" width="${WIDE}" height="${HIGH - 4}" rx="5" fill="rgb(${r},${g},${b})" ${stroke}/><g fill="${ink([r, g, b])}"><text x="${x + 7}" y="${y + 19}">${escaped([...text].slice(0, 11).join(""))}</text><text x="${x + WIDE - 7}" y="${y + 19}" text-anchor="end">${percent(probability)}</text></g>`;
}
