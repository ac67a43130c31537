// The map of chosen heads: a heat map with zoom, or lines between tokens; several maps side by side.
import {
  axes, byChoice, choice, colourOf, css, currentHeads, currentMap, h, headChips, headsName, largest, leastRange, list, mapName, mapOptions, number, overview, readout, room, say,
  select, set, state, tableButton, tableOf, token, tools, weights, windowOf, wordsChoice,
} from "./common.js";
import { heat, scale } from "./map.js";

const MOST_LINES = 120;

export async function viewHead(trace) {
  const index = currentMap(trace);
  const beside = list(state.beside).filter((other) => trace.maps[other] && other !== index).slice(0, 3);
  const indices = [index, ...beside];
  const part = windowOf(await axes(trace, index));
  const heads = indices.map((one) => currentHeads(trace.maps[one], state.heads, trace.long));
  const panels = await Promise.all(indices.map((one, i) => weights(trace, one, heads[i], i === 0 ? part : undefined)));
  const max = largest(panels.map((panel) => largest(panel.values)));

  const others = mapOptions(trace).filter(([one]) => !indices.includes(one));
  const bar = tools(
    select("Map", "map", mapOptions(trace), index, (map) => set({ map, window: "" })),
    choice("Picture", "mode", [["map", "Map"], ["lines", "Lines"]]),
    trace.long ? choice("Cells are pooled by", "cells", [["max", "Largest"], ["mean", "Mean"]]) : byChoice(trace.maps[index]), wordsChoice(trace), leastRange(), tableButton(),
    others.length > 0 && beside.length < 3 && select("Beside", "beside", [["", "–"], ...others], "", (one) => one !== "" && set({ beside: [...beside, one].join() })),
    scale(max, false, panels[0].lowest), headChips(trace.maps[index], "heads", trace.long));
  say(h("span", { className: "faint", textContent: state.mode === "lines" ? "Point at a token to see its weights." : "Point at a cell, or use the arrow keys. Ctrl and wheel, + and − zoom; drag moves." }));

  const across = room();
  const each = Math.max(across > 900 ? (across - 24 * (indices.length - 1)) / indices.length : across, 240);
  const what = trace.long ? null : await overview(trace);
  const figures = panels.map((panel, i) => {
    const map = trace.maps[indices[i]];
    const chosen = list(heads[i]);
    const sentence = what && (chosen.length === 1 || map.heads === 1 ? what[indices[i]].heads[chosen[0] ?? 0].text.replace(/^[^:]*: /, "") : "");
    const title = h("figcaption", {}, h("strong", { textContent: `${mapName(map)} · ${headsName(heads[i], map)}` }), sentence && ` – ${sentence}`,
      i > 0 && h("button", { type: "button", className: "plain", textContent: "Remove", onclick: () => set({ beside: beside.filter((one) => one !== indices[i]).join() }) }));
    const zoomed = (next) => set({ window: whole(next, panel) ? "" : next.join() });
    let body;
    let drawn;
    if (state.mode === "lines") body = lines(panel, max);
    else {
      drawn = heat(panel, {
        room: each, max, least: Number(state.least), name: `${mapName(map)}, ${headsName(heads[i], map)}`, focus: `heat-${i}`, pooled: state.cells === "mean" && trace.long ? "mean" : "largest", zoom: i === 0 ? zoomed : undefined,
      });
      body = drawn.node;
    }
    const buttons = drawn && i === 0 && h("div", { className: "zoom", role: "group", "aria-label": "Zoom" },
      h("button", { type: "button", textContent: "+", "aria-label": "Zoom in", "data-focus": "zoom-in", onclick: () => drawn.zoom(0.5) }),
      h("button", { type: "button", textContent: "−", "aria-label": "Zoom out", "data-focus": "zoom-out", onclick: () => drawn.zoom(2) }),
      part && h("button", { type: "button", textContent: "Whole map", "data-focus": "zoom-all", onclick: () => set({ window: "" }) }));
    const [q0, q1, k0, k1] = panel.part;
    const numbers = state.table === "1" && panel.whole !== false && tableOf(`Weights of ${headsName(heads[i], map)}`,
      panel.about.queries.labels.slice(q0, q1), panel.about.keys.labels.slice(k0, k1), (r, c) => number(panel.values[r * panel.columns + c]));
    const pooled = panel.whole === false && state.table === "1" && h("p", { className: "faint", textContent: "Zoom in for a table: each cell of this map stands for several weights." });
    return h("figure", {}, title, buttons, body, numbers, pooled);
  });
  return [bar, readout, h("div", { className: "beside" }, figures)];
}

const whole = ([q0, q1, k0, k1], { about }) => q0 === 0 && k0 === 0 && q1 === about.queries.labels.length && k1 === about.keys.labels.length;

// Tokens in two columns with a line for each weight.
function lines(panel, max) {
  if (panel.whole === false) return h("p", { className: "alert", textContent: "This map is too large for lines: zoom into it first." });
  const [q0, , k0] = panel.part;
  const [Q, K] = [Math.min(panel.rows, MOST_LINES), Math.min(panel.columns, MOST_LINES)];
  const names = [panel.about.queries.labels.slice(q0, q0 + Q), panel.about.keys.labels.slice(k0, k0 + K)];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const pitch = 27;
  const high = pitch * Math.max(Q, K);
  svg.setAttribute("viewBox", `0 0 100 ${Math.max(high, 1)}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.style.height = `${high}px`;
  const least = Math.max(Number(state.least) / 100, 0.03) * max;
  const paths = [];
  for (let q = 0; q < Q; q++) {
    for (let k = 0; k < K; k++) {
      const weight = panel.values[q * panel.columns + k];
      if (weight < least || !max) continue;
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const [a, b] = [(q + 0.5) * pitch, (k + 0.5) * pitch];
      path.setAttribute("d", `M0 ${a}C40 ${a} 60 ${b} 100 ${b}`);
      path.style.strokeOpacity = (0.08 + 0.92 * weight / max).toFixed(3);
      path.style.strokeWidth = (0.7 + 3.3 * weight / max).toFixed(2);
      path.setAttribute("vector-effect", "non-scaling-stroke");
      paths.push({ q, k, path });
      svg.append(path);
    }
  }
  const box = h("div", { className: "lines" });
  const sides = [0, 1].map((side) => h("div", { className: "side", role: "group", "aria-label": panel.about.names[side] }, names[side].map((name, i) => h("button", {
    type: "button", "data-item": "", onmouseenter: () => point(side, i), onfocus: () => point(side, i), "data-focus": `line-${side}-${i}`,
  }, token(name)))));
  function point(side, i) {
    box.classList.toggle("chosen", i !== null);
    for (const { q, k, path } of paths) path.classList.toggle("on", i !== null && (side ? k : q) === i);
    const values = names[1 - side].map((_, j) => (i === null ? 0 : panel.values[side ? j * panel.columns + i : i * panel.columns + j]));
    const most = largest(values);
    [...sides[1 - side].children].forEach((button, j) => {
      button.style.background = most > 0 && values[j] >= least ? css(colourOf(0.6 * values[j] / max)) : "";
      button.style.color = "";
    });
    [...sides[side].children].forEach((button, j) => { button.style.background = ""; button.classList.toggle("on", j === i); });
    sides[1 - side].querySelectorAll(".on").forEach((button) => button.classList.remove("on"));
    if (i === null) return;
    const top = values.map((value, j) => [value, j]).sort((a, b) => b[0] - a[0]).slice(0, 4).filter(([value]) => value > 0);
    say(token(names[side][i]), side ? " ← " : " → ", ...top.flatMap(([value, j]) => [token(names[1 - side][j]), " ", h("b", { textContent: number(value) }), "  "]));
  }
  box.append(sides[0], svg, sides[1]);
  box.addEventListener("mouseleave", () => point(0, null));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const swap = { ArrowLeft: 0, ArrowRight: 1 }[event.key];
    const side = sides.findIndex((one) => one.contains(event.target));
    if ((step === undefined && swap === undefined) || side < 0) return;
    event.preventDefault();
    event.stopPropagation();
    const at = [...sides[side].children].indexOf(event.target) + (step ?? 0);
    const target = sides[swap ?? side].children;
    target[Math.min(Math.max(at, 0), target.length - 1)]?.focus();
  });
  const cut = panel.rows > Q || panel.columns > K;
  return h("div", {}, h("div", { className: "ends" }, h("span", { textContent: panel.about.names[0] }), h("span", { textContent: panel.about.names[1] })), box,
    cut && h("p", { className: "faint", textContent: `The first ${MOST_LINES} tokens of each side; zoom the map to see others.` }));
}
