// Files of what is shown, drawn by the page: a page that is a file has no server to draw them.
import { $, LIGHT, Told, download, largest, number } from "./common.js";
import { stepOf } from "./map.js";

// Elements of a view have what they show as `panel`: a map, `{ title, rows, columns, labels: [of rows, of columns], values, max, least, lowest, signed }`
// (without `rows` and `columns` as many as there are labels; `least` and `lowest` as in map.js),
// or `{ title, over }` with an image below, or a `body` of SVG with its size, or a function that gives one.

const [FONT, HIGH, GAP, WIDE, TURN] = [12, 16, 28, 1400, 55];
const NAME = 28; // letters of a label
export const escaped = (text) => String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "�").toWellFormed().replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const short = (text) => ([...text].length > NAME ? `${[...text].slice(0, NAME - 1).join("")}…` : text);
const text = (x, y, content, more = "") => `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" ${more}>${escaped(content)}</text>`;
const wide = (labels) => labels.reduce((most, label) => Math.max(most, [...short(label)].length), 0) * FONT * 0.62;

// The cells as pixels of an image.
function pixels(rows, columns, colour) {
  const canvas = Object.assign(document.createElement("canvas"), { width: Math.max(columns, 1), height: Math.max(rows, 1) });
  const image = new ImageData(canvas.width, canvas.height);
  for (let i = 0; i < rows * columns; i++) image.data.set(colour(i), 4 * i);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas.toDataURL();
}
const placed = (href, x, y, width, height, more = "") => `<image href="${href}" x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none" ${more}/>`;
const CRISP = 'style="image-rendering: pixelated"';

// A map as `{ width, height, body }`.
function map({ title, labels: [left, top] = [[], []], rows = left.length, columns = top.length, values, signed = false, max = largest(signed ? values.map(Math.abs) : values), least, lowest }) {
  const ramp = LIGHT[signed ? "Both" : ""];
  const cell = left.length ? Math.max(Math.min(HIGH, 640 / Math.max(rows, columns, 1)), 1) : 64 / Math.max(rows, columns, 1);
  const [x, y] = [left.length ? wide(left) + 8 : 0, 22 + (left.length ? wide(top) * Math.sin(TURN * Math.PI / 180) + 10 : 0)];
  const [width, height] = [columns * cell, rows * cell];
  const colour = (i) => [...ramp[stepOf(values[i], { max, least, lowest, signed })], 255];
  const every = Math.max(Math.ceil(11 / cell), 1);
  const some = (all, put) => all.map((label, i) => (i % every ? "" : put(short(label), (i + 0.5) * cell))).join("");
  const body = text(0, 13, title, 'font-weight="600"')
    + placed(pixels(rows, columns, colour), x, y, width, height, CRISP) + `<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="none" stroke="#dde3ea"/>`
    + some(left, (label, at) => text(x - 6, y + at + 4, label, 'text-anchor="end"'))
    + some(top, (label, at) => text(0, 0, label, `transform="translate(${(x + at + 3).toFixed(1)} ${(y - 5).toFixed(1)}) rotate(-${TURN})"`))
    + (left.length ? text(x, y + height + 16, `${signed ? number(-max) : lowest ? number(lowest) : "0"} to ${number(max)}`, 'fill="#5b6876"') : "");
  const right = wide(top) * Math.cos(TURN * Math.PI / 180);
  return { width: Math.max(x + width + right, [...title].length * FONT * 0.62), height: y + height + 22, body };
}

// An image below weights: `over` has its address and size, and a `grid` of cells with the kind of its `overlay`, or `boxes`, with `values`;
// `around` and `areas` are those of the queries.
function picture({ title, over: { address, size: [w, h], grid, boxes, values, overlay, around = [], areas = [] } }) {
  const factor = Math.min(Math.max(480 / Math.max(w, h), 0.2), 24);
  const [width, height] = [w * factor, h * factor];
  const max = largest(values) || 1;
  const at = (value) => LIGHT.image[Math.round(255 * Math.min(value / max, 1))];
  const frame = ([x, y, bw, bh], stroke, thick) => `<rect x="${x * width}" y="${y * height}" width="${bw * width}" height="${bh * height}" fill="none" stroke="${stroke}" stroke-width="${thick}"/>`;
  const cells = grid && overlay !== "none" && placed(pixels(grid[1], grid[2], (i) => [...at(values[i]), Math.round(255 * (0.3 + 0.42 * values[i] / max))]), 0, 0, width, height, overlay === "smooth" ? "" : CRISP);
  const body = text(0, 13, title, 'font-weight="600"') + `<g transform="translate(0 22)">` + placed(address, 0, 0, width, height, factor > 1 ? CRISP : "") + (cells || "")
    + (boxes ?? []).map((box, i) => frame(box, `rgb(${at(values[i]).join()})`, 1 + 3 * values[i] / max)).join("")
    + areas.map((area) => `<path transform="scale(${factor})" d="${escaped(area)}" fill="#d9480f" fill-opacity=".35"/>`).join("") + around.map((box) => frame(box, "#d9480f", 2)).join("") + "</g>";
  return { width: Math.max(width, [...title].length * FONT * 0.62), height: height + 30, body };
}

async function svg() {
  const panels = [...$("main").querySelectorAll("*")].map((node) => node.panel).filter(Boolean);
  const drawn = (await Promise.all(panels.map((one) => (typeof one === "function" ? one() : one)))).map((one) => (one.over ? picture(one) : one.body ? one : map(one)));
  if (!drawn.length) throw new Told("There is no picture to be saved in this view.");
  let [x, y, line, widest] = [GAP, GAP, 0, 0];
  const body = drawn.map((one) => {
    if (x > GAP && x + one.width > WIDE) [x, y, line] = [GAP, y + line + GAP, 0];
    const group = `<g transform="translate(${x} ${y})">${one.body}</g>`;
    [x, line] = [x + one.width + GAP, Math.max(line, one.height)];
    widest = Math.max(widest, x);
    return group;
  });
  const [width, height] = [Math.ceil(widest), Math.ceil(y + line + GAP)];
  const open = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="'Noto Sans', 'Segoe UI', Arial, 'DejaVu Sans', sans-serif" font-size="${FONT}" fill="#1f2933">`;
  return { width, height, content: `${open}<rect width="100%" height="100%" fill="#fff"/>${body.join("")}</svg>` };
}

async function png({ width, height, content }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(content)}`;
  await image.decode();
  const factor = Math.min(2, 8192 / Math.max(width, height));
  const canvas = Object.assign(document.createElement("canvas"), { width: width * factor, height: height * factor });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

// What is shown, as a file.
export async function saveShown(view, format) {
  const drawing = await svg();
  const file = format === "png" ? await png(drawing) : new Blob([drawing.content], { type: "image/svg+xml" });
  const address = URL.createObjectURL(file);
  download(address, `regard-${view}.${format}`);
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
