// How attention changes in a training: one small plot for each measure, a line for each kind of attention or each layer.
import { choice, h, largest, note, number, query, readout, request, room, say, state, tableButton, tableOf, token, tools } from "./common.js";

// Okabe and Ito (2008), as in the files.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b7b7b", "#8a6d00"];
const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [190, 46, 10, 8, 24];
const colour = (index) => COLOURS[index % COLOURS.length];

export const asksOf = () => ({ minutes: state.along === "minutes" ? "true" : "", layers: state.layers === "1" ? "true" : "" });

export async function viewTraining(trace) {
  // Read anew each time: the training may be going on.
  const { plots } = await (await request(`api/trace/${trace.id}/training?${query(asksOf())}`)).json();
  const names = [...new Set(plots.flatMap((plot) => plot.lines.map((line) => line.name)))];
  const bar = tools(choice("Against", "along", [["updates", "Updates"], ["minutes", "Minutes"]]), choice("Lines", "layers", [["", "Kinds"], ["1", "Layers"]]), tableButton(),
    h("button", { type: "button", className: "plain", textContent: "Read again", title: "The log as it is now", "data-focus": "again", onclick: () => dispatchEvent(new Event("hashchange")) }));
  const legend = h("div", { className: "tools", role: "list", "aria-label": "Lines" }, names.map((name, i) => h("span", { role: "listitem" }, h("i", { className: "line", style: { background: colour(i) } }), token(name))));
  const across = room();
  const width = across > 900 ? (across - 24) / 2 : across;
  say(h("span", { className: "faint", textContent: "Point at a plot, or move along it by ← and →." }));
  const tables = state.table === "1" ? plots.map(table) : [];
  return [bar, readout, legend, h("div", { className: "beside" }, plots.map((plot) => draw(plot, names, width))), ...tables,
    note("Means over the first validation examples of the recipe, as many as validation.diagnose says. Entropy near that of a uniform row, many dead heads or many sinks say that heads do not choose; none of these measures says that a model is right.")];
}

// The points of all lines at each place: [x, [y of line 0, ..]].
function places(plot) {
  const all = new Map();
  plot.lines.forEach((line, i) => line.points.forEach(([x, y]) => {
    if (!all.has(x)) all.set(x, Array(plot.lines.length).fill(null));
    all.get(x)[i] = y;
  }));
  return [...all].sort(([a], [b]) => a - b);
}

const place = (plot, x) => (plot.along === "updates" ? `update ${x}` : `${number(x, 2)} minutes`);

const table = (plot) => {
  const rows = places(plot);
  return tableOf(`${plot.title} (${plot.unit})`, rows.map(([x]) => place(plot, x)), plot.lines.map((line) => line.name), (r, c) => number(rows[r][1][c]));
};

function svg(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  node.append(...children);
  return node;
}

function draw(plot, names, width) {
  const rows = places(plot);
  const most = Math.max(largest(rows.flatMap(([, values]) => values)), 1e-9);
  const [first, last] = [rows[0][0], rows.at(-1)[0]];
  const x = (value) => LEFT + (width - LEFT - RIGHT) * (last > first ? (value - first) / (last - first) : 0.5);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most;
  const digits = plot.unit === "heads" ? 0 : 2;
  const lines = plot.lines.flatMap((line) => {
    const stroke = colour(names.indexOf(line.name));
    const points = line.points.map(([a, b]) => [x(a), y(b)]);
    const marks = points.length < 60 ? points.map(([cx, cy]) => svg("circle", { cx, cy, r: 2.6, fill: stroke })) : [];
    return [svg("polyline", { points: points.map((point) => point.join()).join(" "), fill: "none", stroke, "stroke-width": 1.8 }), ...marks];
  });
  const label = (text, at, down, anchor) => svg("text", { x: at, y: down, "text-anchor": anchor }, text);
  const pointer = svg("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "pointer", visibility: "hidden" });
  const node = svg("svg", {
    class: "plot", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: 0, "data-focus": `plot-${plot.name}`, "data-plot": plot.name,
    "aria-label": `${plot.title}, ${plot.unit}, against ${plot.along}: ${plot.lines.map((line) => `${line.name} from ${number(line.points[0][1])} to ${number(line.points.at(-1)[1])}`).join("; ")}`,
  },
  svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(0), y2: y(0) }), svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(most), y2: y(most), class: "faint" }),
  label("0", LEFT - 6, y(0) + 4, "end"), label(most.toFixed(digits), LEFT - 6, y(most) + 4, "end"),
  label(number(first, plot.along === "updates" ? 0 : 1), LEFT, HEIGHT - 6, "start"), label(number(last, plot.along === "updates" ? 0 : 1), width - RIGHT, HEIGHT - 6, "end"),
  label(plot.along, (LEFT + width) / 2, HEIGHT - 6, "middle"), pointer, ...lines);
  let at = -1;
  const tell = (next) => {
    at = Math.min(Math.max(next, 0), rows.length - 1);
    const [place_, values] = rows[at];
    pointer.setAttribute("x1", x(place_));
    pointer.setAttribute("x2", x(place_));
    pointer.setAttribute("visibility", "visible");
    say(`${place(plot, place_)}: ${plot.name} `, ...plot.lines.flatMap((line, i) => [" ", token(line.name), " ", h("b", { textContent: number(values[i], digits === 0 ? 0 : 3) })]));
  };
  node.addEventListener("pointermove", (event) => {
    const box = node.getBoundingClientRect();
    const wanted = (event.clientX - box.left) * width / box.width;
    tell(rows.reduce((best, row, i) => (Math.abs(x(row[0]) - wanted) < Math.abs(x(rows[best][0]) - wanted) ? i : best), 0));
  });
  node.addEventListener("pointerleave", () => pointer.setAttribute("visibility", "hidden"));
  node.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    tell(at + step);
  });
  return h("figure", {}, h("figcaption", {}, h("strong", { textContent: plot.title }), h("span", { className: "faint", textContent: ` ${plot.unit}` })), node);
}
