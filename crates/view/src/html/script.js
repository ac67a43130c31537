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
const state = {
  entry: 0, map: 0, head: -1, words: true, view: "image", smooth: true, query: null, least: 0, row: -1, column: -1, pinned: false,
};

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
function colour(share, ramp = RAMPS[dark.matches ? "dark" : "light"]) {
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

/* ---- image ---- */

const overImages = data.over_images;
const entryImage = () => data.entries[state.entry].image;
const isOverImage = () => Boolean(entryImage() && data.entries[state.entry].maps[state.map]?.key_places);
const shownView = () => (state.view === "image" && !isOverImage() ? "heat" : state.view);

// Where entry `index` of an axis lies: x, y, width, height as shares of the image's; nothing for a token.
function placeOf(places, index) {
  if (!places) return null;
  if (places.boxes) return places.boxes[index]?.bounds ?? null;
  const { marks, rows, columns } = places.grid;
  if (index < marks) return null;
  const cell = index - marks;
  return [cell % columns / columns, Math.floor(cell / columns) / rows, 1 / columns, 1 / rows];
}

// The weights of one query over all keys, or of -1 the mean over all queries.
function weightsOf({ queries, keys, values }, query) {
  if (query >= 0) return values.subarray(query * keys.length, (query + 1) * keys.length);
  const mean = new Float32Array(keys.length);
  values.forEach((value, i) => { mean[i % keys.length] += value / queries.length; });
  return mean;
}

// Of a drawn cell (one 1, else 0) its place among the keys, else -1.
function drawnCell(weights) {
  const first = weights.findIndex((w) => w > 0);
  return weights.length > 1 && weights[first] > 0.9999 && weights.every((w, i) => i === first || w === 0) ? first : -1;
}

// The least and the largest weight that have a colour: of all words, but of the chosen query alone where cells ask.
function scaleOf(view) {
  const { keys, map } = view;
  const marks = map.key_places.grid?.marks ?? 0;
  const rows = map.query_places?.grid ? [state.query] : view.queries.map((_, i) => i);
  let [low, high] = [Infinity, 0];
  for (const row of rows) {
    weightsOf(view, row).forEach((w, key) => {
      if (key >= marks) { low = Math.min(low, w); high = Math.max(high, w); }
    });
  }
  if (map.normalized || low >= high) low = 0;
  return { low, high, share: (w) => (high > low && w >= state.least * high ? Math.max((w - low) / (high - low), 0) : 0) };
}

function sizeOf({ width, height }, room) {
  const scale = room / Math.max(width, height);
  const whole = scale >= 1 ? Math.floor(scale) : scale;
  return [Math.max(width * whole, 12), Math.max(height * whole, 12)];
}

const laid = (share) => [colour(share, overImages.ramp), overImages.opacity[0] + (overImages.opacity[1] - overImages.opacity[0]) * share];
const rgba = ([r, g, b], opacity) => `rgb(${r} ${g} ${b} / ${opacity})`;

// Appends the image to `box`, and a canvas over it that is drawn on in CSS pixels.
function canvasOverPhoto(box, width, height) {
  const photo = element("div", { className: "photo" });
  photo.classList.toggle("crisp", width >= entryImage().width);
  const canvas = element("canvas");
  const dense = window.devicePixelRatio || 1;
  canvas.width = Math.max(Math.round(width * dense), 1);
  canvas.height = Math.max(Math.round(height * dense), 1);
  box.style.cssText = `width:${width}px;height:${height}px`;
  box.append(photo, canvas);
  const context = canvas.getContext("2d");
  context.scale(dense, dense);
  return { photo, context, dense };
}

// Appends the image with the weights over it to `box`: a photo and a canvas.
function layOver(box, weights, map, scale, width, height) {
  const { grid, boxes } = map.key_places;
  const drawn = drawnCell(weights);
  const { photo, context, dense } = canvasOverPhoto(box, width, height);
  if (grid && drawn < 0) photo.style.filter = `saturate(${overImages.saturation})`;
  if (boxes) {
    context.fillStyle = "rgb(0 0 0 / .35)";
    context.fillRect(0, 0, width, height);
    [...boxes.keys()].sort((a, b) => weights[a] - weights[b]).forEach((i) => {
      const share = scale.share(weights[i]);
      const [x, y, w, h] = placeOf(map.key_places, i);
      context.fillStyle = rgba(colour(share, overImages.ramp), 0.08 + 0.42 * share);
      context.strokeStyle = rgba(colour(share, overImages.ramp), 1);
      context.lineWidth = 1.2 + 1.2 * share;
      context.fillRect(x * width, y * height, w * width, h * height);
      context.strokeRect(x * width, y * height, w * width, h * height);
    });
    return context;
  }
  if (drawn >= grid.marks) {
    const [x, y, w, h] = placeOf(map.key_places, drawn);
    context.fillStyle = "rgb(0 0 0 / .55)";
    context.fillRect(0, 0, width, height);
    context.clearRect(x * width, y * height, w * width, h * height);
    outline(context, [x, y, w, h], width, height, "#ff7a1a");
    return context;
  }
  const cells = weights.subarray(grid.marks);
  if (!state.smooth) {
    cells.forEach((w, i) => {
      const [x, y, cw, ch] = placeOf(map.key_places, i + grid.marks);
      // Whole pixels, so that cells neither overlap nor leave gaps.
      const edge = (share, size) => Math.round(share * size * dense) / dense;
      const [left, top] = [edge(x, width), edge(y, height)];
      context.fillStyle = rgba(...laid(scale.share(w)));
      context.fillRect(left, top, edge(x + cw, width) - left, edge(y + ch, height) - top);
    });
    return context;
  }
  const [across, down] = [Math.max(Math.round(width), 1), Math.max(Math.round(height), 1)];
  const pixels = new ImageData(across, down);
  const between = (place, count) => {
    const at = Math.min(Math.max(place * count - 0.5, 0), count - 1);
    const first = Math.floor(at);
    return [first, Math.min(first + 1, count - 1), at - first];
  };
  const columns = Array.from({ length: across }, (_, x) => between((x + 0.5) / across, grid.columns));
  for (let y = 0; y < down; y++) {
    const [top, bottom, lower] = between((y + 0.5) / down, grid.rows);
    for (let x = 0; x < across; x++) {
      const [left, right, later] = columns[x];
      const at = (row) => cells[row * grid.columns + left] * (1 - later) + cells[row * grid.columns + right] * later;
      const [rgb, opacity] = laid(scale.share(at(top) * (1 - lower) + at(bottom) * lower));
      pixels.data.set([...rgb, Math.round(255 * opacity)], 4 * (y * across + x));
    }
  }
  const layer = element("canvas", { width: across, height: down });
  layer.getContext("2d").putImageData(pixels, 0, 0);
  context.drawImage(layer, 0, 0, width, height);
  return context;
}

function outline(context, [x, y, w, h], width, height, stroke) {
  for (const [style, wide] of [["rgb(0 0 0 / .55)", 3.6], [stroke, 2]]) {
    context.strokeStyle = style;
    context.lineWidth = wide;
    context.strokeRect(x * width + 1, y * height + 1, Math.max(w * width - 2, 1), Math.max(h * height - 2, 1));
  }
}

// The image alone, with the boxes and masks that the queries found.
function layObjects(box, { queries, map }, width, height, named) {
  const { context } = canvasOverPhoto(box, width, height);
  (map.query_places?.boxes ?? []).forEach(({ bounds: [x, y, w, h], score, mask }, i) => {
    const tint = overImages.categories[i % overImages.categories.length];
    if (mask) {
      context.save();
      context.scale(width / entryImage().width, height / entryImage().height);
      context.globalAlpha = 0.4;
      context.fillStyle = tint;
      context.fill(new Path2D(mask));
      context.restore();
    }
    context.strokeStyle = tint;
    context.lineWidth = 2;
    context.strokeRect(x * width, y * height, w * width, h * height);
    if (!named) return;
    const tag = element("span", { className: "tag", dir: "auto", textContent: `${queries[i]}${score === null ? "" : ` ${score.toFixed(2)}`}` });
    tag.style.cssText = `background:${tint};left:${Math.min(Math.max(x, 0), 0.9) * width}px;top:${Math.max(y * height - 18, 0)}px`;
    box.append(tag);
  });
}

function drawImage() {
  const view = current();
  const { queries, keys, map } = view;
  const asks = map.query_places;
  const figure = $("figure");
  const room = Math.min(figure.clientWidth, 460);
  figure.style.setProperty("--picture", `url("${entryImage().address}")`);
  // Of cells the class token asks at first, or, if there is none, all together; of words the one with the largest weight; of object
  // queries none: all boxes are shown.
  const strongest = () => Math.floor(view.values.reduce((best, w, i) => (w > view.values[best] ? i : best), 0) / Math.max(keys.length, 1));
  state.query ??= asks?.grid ? (asks.grid.marks ? 0 : -1) : asks?.boxes ? -1 : strongest();
  state.query = Math.min(state.query, queries.length - 1);
  const all = state.query < 0 && !asks?.grid;
  const scale = scaleOf(view);
  showScale(scale);
  const weights = weightsOf(view, state.query);
  const [width, height] = sizeOf(entryImage(), room);
  const main = element("div", { className: "over main", tabIndex: 0 });
  main.setAttribute("role", "application");
  main.setAttribute("aria-roledescription", "image with a map");
  main.setAttribute("aria-label", `The image with the weights of ${keys.length} places. Arrow keys move from place to place.`);
  if (all) layObjects(main, view, width, height, true);
  else {
    const context = layOver(main, weights, map, scale, width, height);
    const own = placeOf(asks, state.query);
    if (own) outline(context, own, width, height, "#ff7a1a");
  }
  const marker = element("div", { className: "marker", hidden: true });
  main.append(marker);

  const name = () => (state.query < 0 ? "mean of all" : queries[state.query]);
  const show = (key, event) => {
    state.column = key;
    const place = key >= 0 ? placeOf(map.key_places, key) : null;
    marker.hidden = !place;
    if (place) {
      const [x, y, w, h] = place;
      marker.style.cssText = `left:${x * width}px;top:${y * height}px;width:${w * width}px;height:${h * height}px`;
    }
    const text = $("readout");
    if (key < 0) {
      const most = weights.reduce((best, w, i) => (w > weights[best] ? i : best), 0);
      text.replaceChildren(...(all ? [] : [isolated(name()), " looks most at ", isolated(keys[most]), " ", element("b", { textContent: number(weights[most]) })]));
      $("tip").hidden = true;
      return;
    }
    const value = number(weights[key]);
    text.replaceChildren(isolated(name()), " looks at ", isolated(keys[key]), " ", element("b", { textContent: value }));
    const node = $("tip");
    node.hidden = !event;
    if (!event) return;
    node.replaceChildren(isolated(keys[key]), `: ${value}`);
    node.style.left = `${Math.min(event.clientX + 16, innerWidth - node.offsetWidth - 8)}px`;
    node.style.top = `${event.clientY + 18}px`;
  };
  // The place under a point: a cell, or the smallest box.
  const under = (event) => {
    const [x, y] = [event.offsetX / width, event.offsetY / height];
    const { grid, boxes } = map.key_places;
    if (grid) {
      const clamp = (place, count) => Math.min(Math.max(Math.floor(place * count), 0), count - 1);
      return grid.marks + clamp(y, grid.rows) * grid.columns + clamp(x, grid.columns);
    }
    const inside = [...boxes.keys()].filter((i) => {
      const [bx, by, bw, bh] = boxes[i].bounds;
      return x >= bx && x <= bx + bw && y >= by && y <= by + bh;
    });
    const area = (i) => boxes[i].bounds[2] * boxes[i].bounds[3];
    return inside.sort((a, b) => area(a) - area(b))[0] ?? -1;
  };
  if (!all) {
    main.addEventListener("pointermove", (event) => show(under(event), event));
    main.addEventListener("pointerleave", () => show(-1));
    main.addEventListener("click", (event) => { if (asks?.grid) choose(Math.min(under(event), queries.length - 1)); });
    main.addEventListener("keydown", (event) => {
      const { grid } = map.key_places;
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -(grid?.columns ?? 1), ArrowDown: grid?.columns ?? 1 }[event.key];
      const first = grid?.marks ?? 0;
      if (event.key === "Enter" && asks?.grid && state.column >= 0) choose(state.column);
      if (!step) return;
      event.preventDefault();
      const next = state.column < 0 ? first : state.column + step;
      if (next >= first && next < keys.length) show(next, null);
    });
  }

  const choose = (query) => { state.query = query; drawImage(); };
  const list = element("div", { className: "queries" });
  const offer = (query, label, fill) => {
    const button = element("button", { type: "button", title: label, dir: "auto" });
    button.classList.toggle("on", query === state.query);
    button.setAttribute("aria-pressed", query === state.query);
    if (fill) fill(button);
    button.append(element("span", { textContent: label }));
    button.addEventListener("click", () => choose(query));
    list.append(button);
  };
  if (asks?.grid) {
    for (let i = 0; i < asks.grid.marks; i++) offer(i, queries[i]);
    offer(-1, "mean of all");
    list.append(element("p", { textContent: state.query >= asks.grid.marks ? `query ${queries[state.query]}` : "click a cell to make it the query" }));
  } else {
    const [w, h] = sizeOf(entryImage(), 96);
    const small = (draw) => (queries.length > 60 ? null : (button) => {
      const thumb = element("div", { className: "over" });
      draw(thumb, Math.max(w, 24), Math.max(h, 24));
      button.append(thumb);
    });
    offer(-1, asks?.boxes ? "all" : "image", small((thumb, w, h) => layObjects(thumb, view, w, h, false)));
    queries.forEach((query, i) => offer(i, query, small((thumb, w, h) => {
      const context = layOver(thumb, weightsOf(view, i), map, scale, w, h);
      const own = placeOf(asks, i);
      if (own) outline(context, own, w, h, "#ff7a1a");
    })));
  }
  // Of a list that was scrolled, the place stays.
  const before = figure.querySelector(".queries")?.scrollTop ?? 0;
  figure.replaceChildren(element("div", { className: "picture" }, main, list));
  list.scrollTop = before;
  show(-1);
}

// The bar of colours over an image.
function showScale({ low, high }) {
  const stops = overImages.ramp.join(", ");
  $("bar").style.background = `linear-gradient(90deg, ${stops})`;
  $("bar-min").textContent = number(low);
  $("bar-max").textContent = number(high);
  $("least-value").textContent = `≥ ${number(state.least * high)}`;
}

/* ---- controls ---- */

function draw() {
  const { max } = current();
  $("least-value").textContent = `≥ ${number(state.least * max)}`;
  const stops = Array.from({ length: 9 }, (_, i) => css(colour(i / 8)));
  $("bar").style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
  $("bar-min").textContent = number(0);
  $("bar-max").textContent = number(max);
  tip(null);
  const shown = shownView();
  $("over").hidden = !isOverImage();
  $("overlay").hidden = shown !== "image" || !data.entries[state.entry].maps[state.map].key_places.grid;
  document.querySelector(`[name=view][value=${shown}]`).checked = true;
  ({ image: drawImage, heat: drawHeat, lines: drawLines })[shown]();
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
  on("entries", "change", (t) => { state.entry = Number(t.value); state.query = null; fillControls(); });
  on("map", "change", (t) => { state.map = Number(t.value); state.query = null; fillHeads(); draw(); });
  on("head", "change", (t) => { state.head = Number(t.value); draw(); });
  on("pieces", "change", (t) => { state.words = t.value === "words"; state.query = null; draw(); });
  on("view", "change", (t) => { state.view = t.value; draw(); });
  on("overlay", "change", (t) => { state.smooth = t.value === "smooth"; draw(); });
  on("least", "input", (t) => { state.least = Number(t.value) / 100; draw(); });
  dark.addEventListener("change", draw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  const wanted = new URLSearchParams(location.hash.slice(1));
  for (const view of ["heat", "lines"]) if (wanted.has(view)) state.view = view;
  if (wanted.has("subwords")) { state.words = false; document.querySelector("[name=pieces][value=subwords]").checked = true; }
  fillControls();
}
start();
