"use strict";
// The page's data: entries of maps, each with weights [heads, queries, keys] as 16-bit shares of the
// map's largest weight.
const data = JSON.parse(document.getElementById("traces").textContent);
const $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const RAMPS = {
  light: ["#f4f6f9", "#d6e6f2", "#a9d0e6", "#6db3d6", "#3b90c1", "#1f6ba6", "#164a83", "#0d2b5c"],
  dark: ["#1d232c", "#1c3a50", "#1b5676", "#22779a", "#3c9bb4", "#74bfbf", "#b4dfbc", "#f6f6c2"],
};
const state = { entry: 0, map: 0, head: -1, words: true, lines: false, least: 0, row: -1, column: -1, pinned: false };

/* ---- data ---- */

function decode(table, scale) {
  if (!table.values) {
    const bytes = Uint8Array.from(atob(table.data), (c) => c.charCodeAt(0));
    const shares = new DataView(bytes.buffer);
    table.values = Float32Array.from({ length: bytes.length / 2 }, (_, i) => shares.getUint16(2 * i, true) / 65535 * scale);
    table.data = null;
  }
  return table.values;
}

// What is shown now: names and weights [queries, keys] of one head, or of the mean over heads.
function current() {
  const map = data.entries[state.entry].maps[state.map];
  const table = (state.words && map.words) || map.tokens;
  const all = decode(table, map.scale);
  const size = table.queries.length * table.keys.length;
  let values;
  if (state.head >= 0) {
    values = all.subarray(state.head * size, (state.head + 1) * size);
  } else {
    table.mean ??= meanOver(all, size, table.keys.length, map);
    values = table.mean;
  }
  let max = 0;
  for (const value of values) max = Math.max(max, value);
  return { map, queries: table.queries, keys: table.keys, values, max };
}

// In a normalised map, a head that masked a whole row is left out of that row's mean.
function meanOver(all, size, keys, map) {
  if (map.heads === 1) return all;
  const mean = new Float32Array(size);
  for (let start = 0; start < size; start += keys) {
    let heads = 0;
    for (let head = 0; head < map.heads; head++) {
      const row = all.subarray(head * size + start, head * size + start + keys);
      if (map.normalized && row.every((w) => w === 0)) continue;
      heads++;
      row.forEach((w, key) => { mean[start + key] += w; });
    }
    for (let key = start; key < start + keys; key++) mean[key] /= Math.max(heads, 1);
  }
  return mean;
}

/* ---- colours and numbers ---- */

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
function colour(share) {
  const ramp = RAMPS[dark.matches ? "dark" : "light"];
  const place = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
  const index = Math.min(Math.floor(place), ramp.length - 2);
  const [a, b] = [channels(ramp[index]), channels(ramp[index + 1])];
  return a.map((v, i) => Math.round(v + (b[i] - v) * (place - index)));
}
const css = (c) => `rgb(${c[0]} ${c[1]} ${c[2]})`;
const ink = (c) => (0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2] > 140 ? "#111" : "#fff");
const number = (value) => (value === 0 || value >= 0.01 ? value.toFixed(2) : value.toExponential(1));
const short = (value) => (value < 0.995 ? value.toFixed(2).slice(1) : value < 9.95 ? value.toFixed(1) : value.toFixed(0));

function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}
const isolated = (text) => element("bdi", { textContent: text });

/* ---- heat map ---- */

const measure = document.createElement("canvas").getContext("2d");
function widest(names, size) {
  measure.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return names.reduce((most, name) => Math.max(most, measure.measureText(name).width), 0);
}

function drawHeat() {
  const view = current();
  const { queries, keys, values, max, map } = view;
  const figure = $("figure");
  const room = figure.clientWidth;
  const fixed = Math.min(widest(queries, 14), 180, room * 0.4);
  const left = Math.max(fixed, widest(map.axes, 12) + 20) + 12;
  const cell = Math.min(Math.max(Math.floor((room - left - 40) / Math.max(keys.length, 1)), 3), 34);
  const size = Math.min(Math.max(cell * 0.8, 9), 14);
  const steep = cell < 20 ? 65 : 50;
  const slope = Math.sin(steep * Math.PI / 180);
  const reach = Math.min(widest(keys, size), 150);
  const top = Math.max(reach * slope + size, 40) + 6;
  const [width, height] = [cell * keys.length, cell * queries.length];
  const overhang = Math.max(reach * Math.cos(steep * Math.PI / 180) + 8 - cell / 2, 8);

  const box = element("div", { className: "heat" });
  box.style.width = `${left + width + overhang}px`;
  box.style.height = `${top + height + 4}px`;
  const canvas = element("canvas", { tabIndex: 0 });
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "heat map");
  canvas.setAttribute("aria-label",
    `Attention of ${queries.length} ${map.axes[0]} entries to ${keys.length} ${map.axes[1]} entries. Arrow keys move from cell to cell.`);
  const dense = window.devicePixelRatio || 1;
  canvas.width = Math.max(Math.round(width * dense), 1);
  canvas.height = Math.max(Math.round(height * dense), 1);
  canvas.style.cssText = `left:${left}px;top:${top}px;width:${width}px;height:${height}px`;
  paint(canvas.getContext("2d"), view, cell, dense);
  box.append(canvas);

  const step = Math.max(Math.ceil(size * 0.95 / (cell * (cell < 20 ? 0.9 : 0.77))), 1);
  const label = (text, kind, index, style) => {
    const span = element("span", { className: kind, textContent: text, title: text, dir: "auto" });
    span.style.cssText = style;
    if (index >= 0) span.dataset.index = index;
    box.append(span);
  };
  keys.forEach((key, i) => {
    if (i % step) return;
    const x = left + (i + 0.5) * cell;
    label(key, "column", i, `left:${x}px;top:${top - 6 - size * 0.7}px;font-size:${size}px;transform:rotate(-${steep}deg)`);
  });
  queries.forEach((query, i) => {
    if (i % step) return;
    const y = top + (i + 0.5) * cell - size * 0.625;
    label(query, "row", i, `right:${overhang + width + 8}px;top:${y}px;max-width:${left - 12}px;font-size:${size}px`);
  });
  const right = `right:${overhang + width + 8}px`;
  label(`${map.axes[1]} →`, "axis", -1, `${right};top:${top - 38}px`);
  label(`${map.axes[0]} ↓`, "axis", -1, `${right};top:${top - 21}px`);
  const bands = [element("div", { className: "band" }), element("div", { className: "band" })];
  box.append(...bands);

  const mark = () => {
    const { row, column } = state;
    const on = row >= 0 && column >= 0 && row < queries.length && column < keys.length;
    bands.forEach((band) => { band.hidden = !on; });
    box.querySelectorAll(".on").forEach((node) => node.classList.remove("on"));
    if (!on) return;
    bands[0].style.cssText = `left:${left - 1}px;top:${top + row * cell - 1}px;width:${width + 2}px;height:${cell + 1}px`;
    bands[1].style.cssText = `left:${left + column * cell - 1}px;top:${top - 1}px;width:${cell + 1}px;height:${height + 2}px`;
    box.querySelector(`.row[data-index="${row}"]`)?.classList.add("on");
    box.querySelector(`.column[data-index="${column}"]`)?.classList.add("on");
  };
  const choose = (row, column, event) => {
    if (!queries.length || !keys.length) return;
    state.row = Math.min(Math.max(row, 0), queries.length - 1);
    state.column = Math.min(Math.max(column, 0), keys.length - 1);
    mark();
    readCell(view);
    tip(event, view);
  };
  const leave = () => {
    tip(null);
    if (state.pinned) return;
    state.row = state.column = -1;
    mark();
    readCell(view);
  };
  canvas.addEventListener("pointermove", (event) => {
    if (state.pinned) return;
    choose(Math.floor(event.offsetY / cell), Math.floor(event.offsetX / cell), event);
  });
  canvas.addEventListener("pointerdown", (event) => {
    state.pinned = false;
    choose(Math.floor(event.offsetY / cell), Math.floor(event.offsetX / cell), event);
    state.pinned = event.pointerType !== "mouse" || event.detail === 2;
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", () => { state.pinned = false; leave(); });
  canvas.addEventListener("keydown", (event) => {
    const [row, column] = [Math.max(state.row, 0), Math.max(state.column, 0)];
    const first = state.row < 0;
    const moves = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1], Home: [row, 0], End: [row, keys.length - 1],
      PageUp: [row - 10, column], PageDown: [row + 10, column],
    };
    if (event.key === "Escape") { state.pinned = false; leave(); return; }
    if (!(event.key in moves)) return;
    event.preventDefault();
    state.pinned = true;
    choose(...(first ? [0, 0] : moves[event.key]), null);
  });
  figure.replaceChildren(box);
  mark();
  readCell(view);
}

function paint(context, { queries, keys, values, max }, cell, dense) {
  context.scale(dense, dense);
  const gap = cell >= 12 ? 1 : 0;
  context.font = `${Math.round(cell * 0.36)}px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const ground = css(colour(0));
  queries.forEach((_, row) => keys.forEach((_, column) => {
    const value = values[row * keys.length + column];
    const shown = value >= state.least * max;
    const fill = shown && max > 0 ? colour(value / max) : null;
    context.fillStyle = fill ? css(fill) : ground;
    context.fillRect(column * cell, row * cell, cell - gap, cell - gap);
    if (fill && cell >= 26 && value >= 0.05 * max && value >= 0.005 && value < 999.5) {
      context.fillStyle = ink(fill);
      context.fillText(short(value), (column + 0.5) * cell - gap / 2, (row + 0.53) * cell);
    }
  }));
}

function readCell({ queries, keys, values }) {
  const { row, column } = state;
  if (!(row >= 0 && row < queries.length && column >= 0 && column < keys.length)) {
    $("readout").textContent = "";
    return;
  }
  const value = element("b", { textContent: number(values[row * keys.length + column]) });
  $("readout").replaceChildren(isolated(queries[row]), " looks at ", isolated(keys[column]), " ", value);
}

function tip(event, view) {
  const node = $("tip");
  node.hidden = !event;
  if (!event) return;
  const { queries, keys, values } = view;
  const value = number(values[state.row * keys.length + state.column]);
  node.replaceChildren(isolated(queries[state.row]), " → ", isolated(keys[state.column]), `: ${value}`);
  const [x, y] = [event.clientX + 16, event.clientY + 18];
  node.style.left = `${Math.min(x, innerWidth - node.offsetWidth - 8)}px`;
  node.style.top = `${y + node.offsetHeight > innerHeight ? event.clientY - node.offsetHeight - 10 : y}px`;
}

/* ---- lines ---- */

const LINE = 28;
function drawLines() {
  const view = current();
  const { queries, keys, values, max, map } = view;
  const box = element("div", { className: "lines" });
  const column = (names, title, kind) => {
    const side = element("div", { className: "side" }, element("h2", { textContent: title }));
    names.forEach((name, i) => {
      const button = element("button", { type: "button", textContent: name, title: name, dir: "auto" });
      button.dataset.side = kind;
      button.dataset.index = i;
      side.append(button);
    });
    return side;
  };
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("preserveAspectRatio", "none");
  const tall = Math.max(queries.length, keys.length, 1) * LINE;
  svg.setAttribute("viewBox", `0 0 100 ${tall}`);
  svg.style.height = `${tall}px`;
  // A weight of less than a hundredth of the largest could not be seen.
  const least = Math.max(state.least, 0.01) * max;
  queries.forEach((_, query) => keys.forEach((_, key) => {
    const value = values[query * keys.length + key];
    if (!(max > 0) || value < least) return;
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const [from, to] = [(key + 0.5) * LINE, (query + 0.5) * LINE];
    path.setAttribute("d", `M0 ${from}C45 ${from} 55 ${to} 100 ${to}`);
    path.setAttribute("vector-effect", "non-scaling-stroke");
    path.setAttribute("stroke-width", (1 + 3 * value / max).toFixed(2));
    path.setAttribute("stroke-opacity", (value / max).toFixed(3));
    path.dataset.query = query;
    path.dataset.key = key;
    svg.append(path);
  }));
  box.append(column(keys, map.axes[1], "key"), element("div", {}, svg), column(queries, map.axes[0], "query"));

  const choose = (button) => {
    const chosen = button && { side: button.dataset.side, index: Number(button.dataset.index) };
    box.classList.toggle("chosen", Boolean(chosen));
    for (const other of box.querySelectorAll("button")) {
      other.classList.toggle("on", other === button);
      delete other.dataset.weight;
      if (!chosen || other.dataset.side === chosen.side) continue;
      const [query, key] = chosen.side === "query" ? [chosen.index, Number(other.dataset.index)] : [Number(other.dataset.index), chosen.index];
      const value = values[query * keys.length + key];
      if (value >= least && value > 0) other.dataset.weight = number(value);
    }
    for (const path of svg.children) {
      path.classList.toggle("on", Boolean(chosen) && Number(path.dataset[chosen.side]) === chosen.index);
    }
    readToken(view, chosen);
  };
  box.addEventListener("pointerover", (event) => choose(event.target.closest("button") || focused()));
  box.addEventListener("pointerleave", () => choose(focused()));
  box.addEventListener("focusin", (event) => choose(event.target.closest("button")));
  box.addEventListener("focusout", () => choose(null));
  box.addEventListener("keydown", (event) => {
    const button = event.target.closest("button");
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") document.activeElement.blur();
    if (!button) return;
    const { side, index } = button.dataset;
    const across = { ArrowLeft: "key", ArrowRight: "query" }[event.key];
    const find = (s, i) => box.querySelector(`button[data-side="${s}"][data-index="${i}"]`);
    const next = step ? find(side, Number(index) + step) : across && find(across, Math.min(index, (across === "key" ? keys : queries).length - 1));
    if (next) { event.preventDefault(); next.focus(); }
  });
  const focused = () => (box.contains(document.activeElement) ? document.activeElement.closest("button") : null);
  $("figure").replaceChildren(box);
  readToken(view, null);
}

function readToken({ queries, keys, values }, chosen) {
  if (!chosen) { $("readout").textContent = ""; return; }
  const outward = chosen.side === "query";
  const others = outward ? keys : queries;
  const weights = others.map((name, i) => [name, values[outward ? chosen.index * keys.length + i : i * keys.length + chosen.index]]);
  weights.sort((a, b) => b[1] - a[1]);
  const parts = weights.slice(0, 4).filter(([, w]) => w >= 0.005)
    .flatMap(([name, w], i) => [i ? ", " : " ", isolated(name), " ", element("b", { textContent: number(w) })]);
  const verb = outward ? " looks at" : " is looked at by";
  $("readout").replaceChildren(isolated((outward ? queries : keys)[chosen.index]), verb, ...(parts.length ? parts : [" nothing"]));
}

/* ---- controls ---- */

function draw() {
  const { max } = current();
  $("least-value").textContent = `≥ ${number(state.least * max)}`;
  const stops = Array.from({ length: 9 }, (_, i) => css(colour(i / 8)));
  $("bar").style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
  $("bar-max").textContent = number(max);
  tip(null);
  (state.lines ? drawLines : drawHeat)();
}

function fillControls() {
  const entry = data.entries[state.entry];
  state.map = Math.min(state.map, Math.max(entry.maps.length - 1, 0));
  const empty = entry.maps.length === 0;
  document.querySelector(".tools").hidden = empty;
  $("source").replaceChildren(isolated(entry.source));
  $("target").replaceChildren(isolated(entry.target));
  $("texts").hidden = !entry.source && !entry.target;
  $("model").textContent = entry.model;
  if (empty) {
    $("figure").textContent = "This entry has no attention maps.";
    return;
  }
  $("map").replaceChildren(...entry.maps.map((map, i) => element("option", { value: i, textContent: map.title, selected: i === state.map })));
  $("map").closest("label").hidden = entry.maps.length < 2;
  fillHeads();
  draw();
}

function fillHeads() {
  const map = data.entries[state.entry].maps[state.map];
  state.head = state.head < map.heads ? state.head : -1;
  const option = (value, text) => element("option", { value, textContent: text, selected: value === state.head });
  const heads = Array.from({ length: map.heads }, (_, i) => option(i, `head ${i + 1}`));
  $("head").replaceChildren(option(-1, `mean of ${map.heads}`), ...heads);
  $("head").closest("label").hidden = map.heads < 2;
  $("pieces").hidden = !map.words;
}

function start() {
  const sources = new Set(data.entries.map((entry) => entry.source));
  $("entries").append(...data.entries.map((entry, i) => {
    const radio = element("input", { type: "radio", name: "entry", value: i, checked: i === 0 });
    const text = element("span", {}, isolated(entry.target || "∅"));
    if (sources.size > 1) text.prepend(element("span", { className: "source" }, isolated(entry.source)));
    const rank = entry.rank === null ? i + 1 : entry.rank + 1;
    const score = entry.score === null ? "" : entry.score.toFixed(2).replace("-", "−");
    return element("label", {}, radio, element("span", { className: "number", textContent: rank }),
      element("span", { className: "score", textContent: score }), text);
  }));
  document.querySelector("nav").hidden = data.entries.length < 2;
  if (!data.entries.length) {
    $("figure").textContent = "There are no traces in this page.";
    document.querySelector(".tools").hidden = true;
    return;
  }
  const on = (id, event, act) => $(id).addEventListener(event, (e) => { act(e.target); state.row = state.column = -1; state.pinned = false; });
  on("entries", "change", (t) => { state.entry = Number(t.value); fillControls(); });
  on("map", "change", (t) => { state.map = Number(t.value); fillHeads(); draw(); });
  on("head", "change", (t) => { state.head = Number(t.value); draw(); });
  on("pieces", "change", (t) => { state.words = t.value === "words"; draw(); });
  on("view", "change", (t) => { state.lines = t.value === "lines"; draw(); });
  on("least", "input", (t) => { state.least = Number(t.value) / 100; draw(); });
  dark.addEventListener("change", draw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has("lines")) { state.lines = true; document.querySelector("[name=view][value=lines]").checked = true; }
  if (wanted.has("subwords")) { state.words = false; document.querySelector("[name=pieces][value=subwords]").checked = true; }
  fillControls();
}
start();
