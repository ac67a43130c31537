// Weights over the image: for words of a caption or a question, object queries, the class token, cells.
import {
  NOT_EXPLANATION, axes, byChoice, choice, colours, css, currentHeads, currentMap, h, headChips, headsName, imageAddress, largest, list, mapName, mapOptions, note, number,
  readout, room, say, select, set, state, sums, tableButton, tableOf, token, tools,
} from "./common.js";
import { severalButton, toggled, tokenList } from "./text.js";

export const onImage = (map) => map.over !== "tokens";

export async function viewImage(trace) {
  const index = currentMap(trace, "map", onImage);
  const map = trace.maps[index];
  const heads = currentHeads(map);
  const about = await axes(trace, index);
  const Q = about.queries.labels.length;
  const chosen = list(state.chosen).filter((i) => i < Q);
  // Of a model whose queries are cells those are usual that its answer is read from: the class token, or all cells.
  const marks = about.queries.grid?.[0];
  const [first, end] = about.queries.readout ?? [0, 1];
  const usual = Array.from({ length: end - first }, (_, i) => first + i);
  const used = chosen.length ? chosen : usual.filter((i) => i < Q);
  const values = (await sums(trace, index, heads, used, "from")).map((value) => value / Math.max(used.length, 1));
  const bar = tools(
    select("Map", "map", mapOptions(trace).filter(([i]) => onImage(trace.maps[i])), index),
    about.keys.grid && choice("Overlay", "overlay", [["smooth", "Smooth"], ["cells", "By cell"], ["none", "Image"]]),
    byChoice(map), severalButton(), tableButton(), headChips(map));

  const [w, high] = trace.image;
  const factor = Math.min(Math.min(room(), 560) / w, 520 / high);
  const size = { width: `${Math.round(w * factor)}px`, height: `${Math.round(high * factor)}px` };
  const photo = h("img", { src: imageAddress(trace), alt: "The image that the model looked at", className: factor > 1 ? "crisp" : "" });
  const over = h("div", { className: `over${state.overlay === "none" ? "" : " pale"}`, style: size, tabIndex: 0, role: "application", "aria-roledescription": "map over an image",
    "aria-label": "Weights over the image. Arrow keys move from cell to cell.", "data-focus": "over" }, photo);
  const marker = h("div", { className: "marker", hidden: true });
  const prefix = about.keys.grid?.[0] ?? 0;
  const cells = about.keys.grid ? values.subarray(prefix) : values;
  const max = largest(cells) || 1;
  const ramp = colours("image");
  if (about.keys.grid && state.overlay !== "none") {
    const [, rows, columns] = about.keys.grid;
    const canvas = h("canvas", { width: columns, height: rows, className: state.overlay === "smooth" ? "" : "crisp", "aria-hidden": "true" });
    const image = new ImageData(columns, rows);
    cells.forEach((value, i) => image.data.set([...ramp[Math.round(255 * Math.min(value / max, 1))], Math.round(255 * (0.3 + 0.42 * value / max))], 4 * i));
    canvas.getContext("2d").putImageData(image, 0, 0);
    over.append(canvas);
  }
  const bounds = (i) => {
    if (about.keys.boxes) return about.keys.boxes[i];
    const [, rows, columns] = about.keys.grid;
    return [(i % columns) / columns, Math.floor(i / columns) / rows, 1 / columns, 1 / rows];
  };
  const place = (node, [x, y, width, height]) => Object.assign(node.style, { left: `${100 * x}%`, top: `${100 * y}%`, width: `${100 * width}%`, height: `${100 * height}%` });
  if (about.keys.boxes) {
    cells.forEach((value, i) => {
      const box = h("div", { className: "box", style: { borderColor: css(ramp[Math.round(255 * Math.min(value / max, 1))]), borderWidth: `${1 + 3 * value / max}px` } });
      place(box, bounds(i));
      over.append(box);
    });
  }
  // Where the chosen queries are, of those that are boxes.
  const around = used.filter((q) => about.queries.boxes).map((q) => about.queries.boxes[q]);
  const areas = used.map((q) => about.queries.areas?.[q]).filter(Boolean);
  if (areas.length) over.append(outlines(areas, trace.image));
  around.forEach((bounds) => { const box = h("div", { className: "box query" }); place(box, bounds); over.append(box); });
  over.panel = async () => ({
    title: `${mapName(map)} · ${headsName(heads, map)}`,
    over: { address: await pixelsOf(photo), size: trace.image, grid: about.keys.grid, boxes: about.keys.boxes, values: cells, overlay: state.overlay, around, areas },
  });
  over.append(marker);
  const count = cells.length;
  let at = null;
  const point = (i) => {
    at = i;
    marker.hidden = i === null;
    if (i === null) return hint();
    place(marker, bounds(i));
    say(...used.slice(0, 4).flatMap((q, n) => [n ? " + " : "", token(about.queries.labels[q])]), " → ", token(about.keys.labels[prefix + i]), " ", h("b", { textContent: number(cells[i], 4) }));
  };
  const hint = () => say(h("span", { className: "faint", textContent: "Point at the image for weights; choose what asks below, Shift adds another: the mean is shown." }));
  const under = (event) => {
    const frame = over.getBoundingClientRect();
    const [x, y] = [(event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height];
    if (about.keys.grid) {
      const [, rows, columns] = about.keys.grid;
      return x >= 0 && y >= 0 && x < 1 && y < 1 ? Math.floor(y * rows) * columns + Math.floor(x * columns) : null;
    }
    let best = null;
    about.keys.boxes?.forEach(([bx, by, bw, bh], i) => { if (x >= bx && y >= by && x < bx + bw && y < by + bh && (best === null || cells[i] > cells[best])) best = i; });
    return best;
  };
  over.addEventListener("pointermove", (event) => { const i = under(event); if (i !== at) point(i); });
  over.addEventListener("pointerleave", () => point(null));
  over.addEventListener("click", (event) => {
    const i = under(event);
    if (i !== null && about.same) set({ chosen: toggled(chosen, prefix + i, event).join() });
  });
  over.addEventListener("keydown", (event) => {
    const columns = about.keys.grid?.[2] ?? 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (!step || !count) return;
    event.preventDefault();
    event.stopPropagation();
    point(Math.min(Math.max((at ?? -step) + step, 0), count - 1));
  });
  hint();
  // Cells are chosen in the image itself; other queries from a list.
  const listed = about.queries.grid ? { labels: about.queries.labels.slice(0, marks), special: [] } : about.queries;
  const buttons = tokenList(listed, "What asks", used, { key: "ask", pick: (i, event) => set({ chosen: toggled(chosen, i, event).join() }) });
  const outside = prefix > 0 && h("p", { className: "faint" }, ...about.keys.labels.slice(0, prefix).flatMap((name, i) => [token(name), ` ${number(values[i])} `]), " outside of the image");
  const grid = about.keys.grid;
  const table = state.table === "1" && (grid
    ? tableOf("Weights of the cells", Array.from({ length: grid[1] }, (_, i) => `row ${i}`), Array.from({ length: grid[2] }, (_, i) => `column ${i}`), (r, c) => number(cells[r * grid[2] + c]))
    : tableOf("Weights of the boxes", about.keys.labels, ["weight"], (r) => number(cells[r])));
  return [bar, readout, h("div", { className: "picture" }, h("figure", {}, h("figcaption", {}, h("strong", { textContent: `${mapName(map)} · ${headsName(heads, map)}` })), over,
    h("div", { className: "scale" }, "0", h("i", { style: { background: `linear-gradient(to right, ${[0, 64, 128, 192, 255].map((i) => css(ramp[i])).join(", ")})` } }), number(max)), outside),
  h("div", { className: "asks" }, h("h2", { textContent: about.names[0] }), buttons.box, about.queries.grid && h("p", { className: "faint", textContent: about.same ? "Click a cell of the image to see what it looks at." : "" }))),
  table, note(NOT_EXPLANATION)];
}

// An image as an address that a file can hold.
async function pixelsOf(photo) {
  await photo.decode();
  const canvas = h("canvas", { width: photo.naturalWidth, height: photo.naturalHeight });
  canvas.getContext("2d").drawImage(photo, 0, 0);
  return canvas.toDataURL();
}

// Masks over the image.
function outlines(areas, [width, height]) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "areas");
  for (const area of areas) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", area);
    svg.append(path);
  }
  return svg;
}
