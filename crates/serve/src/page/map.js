// A heat map on a canvas: labels, hover, cursor, zoom and pan.
import { colours, css, h, ink, number, say, token } from "./common.js";

const FONT = "\"Noto Sans\", \"Segoe UI\", \"Helvetica Neue\", Arial, \"DejaVu Sans\", sans-serif";
const TURN = Math.PI / 3.2;

// data: { rows, columns, values, part: [q0, q1, k0, k1], about, cell, lowest } as `weights` gives it. `lowest`, if there is one, is the
// weight of the first colour on a logarithmic scale.
// options: room (pixels), max (what the last colour stands for), least (share), signed, name, zoom(part), hover(row, column).
export function heat(data, options) {
  const { rows, columns, values, part: [q0, q1, k0, k1], about } = data;
  const names = [about.queries.labels, about.keys.labels];
  const [Q, K] = [q1 - q0, k1 - k0];
  const box = h("div", { className: "heat" });
  const canvas = h("canvas", { tabIndex: 0, role: "application", "aria-roledescription": "heat map", "data-focus": options.focus ?? "heat" });
  canvas.setAttribute("aria-label", `${options.name}: ${Q} ${about.names[0]} entries by ${K} ${about.names[1]} entries. Arrow keys move from cell to cell; plus and minus zoom.`);
  box.append(canvas);
  const context = canvas.getContext("2d");

  const widest = (labels, size, most) => {
    context.font = `${size}px ${FONT}`;
    return Math.min(labels.reduce((wide, label) => Math.max(wide, context.measureText(label.slice(0, 60)).width), 0), most);
  };
  const entries = (labels, first, size, count) => Array.from({ length: count }, (_, i) => labels[Math.min(first + Math.floor(i * size / count), labels.length - 1)]);
  const shades = { max: options.max, least: (options.least ?? 0) / 100, lowest: data.lowest, signed: options.signed };
  box.panel = { title: options.name, rows, columns, values, ...shades, labels: [entries(names[0], q0, Q, rows), entries(names[1], k0, K, columns)] };
  const room = options.room;
  // A cell of many tokens is named by its place, too.
  const named = (labels, first, last) => labels.slice(first, last).map((label, i) => (data.cell > 1 ? `${first + i + 1} ${label}` : label));
  const shownRows = named(names[0], q0, q1), shownColumns = named(names[1], k0, k1);
  const gutter = Math.min(130, room * 0.32);
  // Numbers of later places are longer.
  const some = (labels) => labels.filter((_, i) => i % Math.ceil(labels.length / 400) === 0);
  const left = Math.ceil(widest(some(shownRows), 12.5, gutter)) + 12;
  const reach = widest(some(shownColumns), 12.5, gutter);
  const right = Math.ceil(reach * Math.cos(TURN)) + 6;
  const cell = Math.max(Math.min(columns ? (room - left - right) / K : 0, 34), 0.01);
  const top = Math.ceil(Math.max(reach * Math.sin(TURN), 12)) + 18;
  // A few rows of many columns would be a line.
  const [wide, high] = [cell * K, Math.min(Math.max(cell * Q, Math.min(14 * Q, 240)), 4000)];
  const down = Q ? high / Q : 0;
  const [W, H] = [Math.ceil(left + wide + right), Math.ceil(top + high + 3)];
  const dense = devicePixelRatio || 1;
  canvas.width = W * dense;
  canvas.height = H * dense;
  Object.assign(canvas.style, { width: `${W}px`, height: `${H}px` });

  // One pixel a cell, made once.
  const pixels = rows && columns ? Object.assign(document.createElement("canvas"), { width: columns, height: rows }) : null;
  if (pixels) {
    const image = new ImageData(columns, rows);
    const ramp = colours(options.signed ? "Both" : "");
    for (let i = 0; i < values.length; i++) image.data.set([...ramp[stepOf(values[i], shades)], 255], 4 * i);
    pixels.getContext("2d").putImageData(image, 0, 0);
  }

  let drag = null; // where it began, and the entries that it has moved by
  let at = null; // [row, column] of the window's cells, in entries
  const styles = () => getComputedStyle(document.documentElement);
  function paint() {
    const [inkColour, faint, mark, ground] = ["--ink", "--faint", "--mark", "--line"].map((name) => styles().getPropertyValue(name));
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.clearRect(0, 0, W, H);
    if (!pixels) {
      context.fillStyle = faint;
      context.fillText("no weights", left, top + 14);
      return;
    }
    context.imageSmoothingEnabled = false;
    context.save();
    context.beginPath();
    context.rect(left, top, wide, high);
    context.clip();
    const [dx, dy] = drag ? drag.by : [0, 0];
    // Cells of a fixed size may reach beyond the last entry.
    const [across, along] = data.cell ? [columns * data.cell * cell, rows * data.cell * down] : [wide, high];
    context.drawImage(pixels, left + dx * cell, top + dy * down, across, along);
    context.restore();
    if (dx || dy) return;
    const gap = cell >= 14 && down >= 14;
    context.strokeStyle = gap ? styles().getPropertyValue("--ground") : ground;
    context.lineWidth = 1;
    context.beginPath();
    if (gap) {
      for (let c = 0; c <= K; c++) { context.moveTo(left + c * cell, top); context.lineTo(left + c * cell, top + high); }
      for (let r = 0; r <= Q; r++) { context.moveTo(left, top + r * down); context.lineTo(left + wide, top + r * down); }
    } else {
      context.rect(left - 0.5, top - 0.5, wide + 1, high + 1);
    }
    context.stroke();
    if (cell >= 30 && data.whole !== false) {
      context.font = `10.5px ${FONT}`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      const ramp = colours(options.signed ? "Both" : "");
      for (let r = 0; r < Q; r++) {
        for (let c = 0; c < K; c++) {
          const value = values[r * K + c];
          if (Math.abs(value) < Math.max(0.06, shades.least) * (shades.max || 1)) continue;
          context.fillStyle = ink(ramp[stepOf(value, shades)]);
          context.fillText(Math.abs(value) < 0.995 ? value.toFixed(2).replace("0.", ".") : value.toFixed(1), left + (c + 0.5) * cell, top + (r + 0.5) * down);
        }
      }
    }
    label(shownRows, down, at?.[0], (i, text) => {
      context.textAlign = "right";
      context.fillText(text, left - 8, top + (i + 0.5) * down);
    }, gutter - 4, inkColour, mark);
    label(shownColumns, cell, at?.[1], (i, text) => {
      context.save();
      context.translate(left + (i + 0.5) * cell + 2, top - 6);
      context.rotate(-TURN);
      context.textAlign = "left";
      context.fillText(text, 0, 0);
      context.restore();
    }, gutter - 4, inkColour, mark);
    if (at) {
      context.strokeStyle = mark;
      context.lineWidth = 1.5;
      context.strokeRect(left + at[1] * cell, top, Math.max(cell, 2), high);
      context.strokeRect(left, top + at[0] * down, wide, Math.max(down, 2));
    }
  }
  function label(texts, pitch, chosen, put, most, colour, mark) {
    const size = Math.min(Math.max(pitch * 0.8, 10), 12.5);
    const step = Math.max(Math.ceil(size * 1.15 / pitch), 1);
    context.font = `${size}px ${FONT}`;
    context.textBaseline = "middle";
    texts.forEach((text, i) => {
      const near = chosen !== undefined && Math.abs(chosen - i) < step;
      if (i === chosen ? false : i % step || near) return;
      context.fillStyle = i === chosen ? mark : colour;
      put(i, fitted(text, most));
    });
  }
  function fitted(text, most) {
    if (context.measureText(text).width <= most) return text;
    let end = Math.min(text.length, 60);
    while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > most) end--;
    return `${text.slice(0, end)}…`;
  }

  // The value of an entry; of a pooled map that of its cell.
  const cellOf = (place, length, cells) => (data.cell ? Math.floor(place / data.cell) : Math.min(Math.floor(place * cells / length), cells - 1));
  const valueAt = (row, column) => values[cellOf(row, Q, rows) * columns + cellOf(column, K, columns)];
  function show(place, from = true) {
    at = place;
    paint();
    if (!from) return;
    options.hover?.(place);
    if (!place) return say();
    const pooled = rows < Q || columns < K ? `, the ${options.pooled ?? "largest"} of its cell` : "";
    const where = (place) => (data.cell ? h("span", { className: "faint", textContent: `${place + 1} ` }) : "");
    say(where(q0 + place[0]), token(names[0][q0 + place[0]]), " → ", where(k0 + place[1]), token(names[1][k0 + place[1]]), " ", h("b", { textContent: number(valueAt(...place), 4) }), pooled);
  }
  const place = (event) => {
    const bounds = canvas.getBoundingClientRect();
    const [x, y] = [(event.clientX - bounds.left - left) / cell, (event.clientY - bounds.top - top) / down];
    return x >= 0 && y >= 0 && x < K && y < Q ? [Math.floor(y), Math.floor(x)] : null;
  };

  canvas.addEventListener("pointermove", (event) => {
    if (drag && options.zoom) {
      drag.by = [Math.round((event.clientX - drag.x) / cell), Math.round((event.clientY - drag.y) / down)];
      return paint();
    }
    const found = place(event);
    if (String(found) !== String(at)) show(found);
  });
  canvas.addEventListener("pointerleave", () => { if (at && !drag) show(null); });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button) return show(place(event));
    drag = { x: event.clientX, y: event.clientY, by: [0, 0] };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const [dx, dy] = drag.by;
    drag = null;
    if ((dx || dy) && options.zoom) options.zoom(inside([q0 - dy, q1 - dy, k0 - dx, k1 - dx]));
    else if (place(event)) options.pick?.(place(event), event);
    paint();
  });
  const inside = ([a, b, c, d]) => {
    const fit = (low, high, length) => {
      const size = Math.min(high - low, length);
      const start = Math.min(Math.max(low, 0), length - size);
      return [start, start + size];
    };
    return [...fit(a, b, names[0].length), ...fit(c, d, names[1].length)];
  };
  // The window with `factor` times as many entries on a side, around a place.
  function zoom(factor, around = at ?? [Q / 2, K / 2]) {
    if (!options.zoom) return;
    const side = (start, size, middle) => {
      const next = Math.max(Math.round(size * factor), 4);
      const low = Math.round(start + middle - (middle / size) * next);
      return [low, low + next];
    };
    options.zoom(inside([...side(q0, Q, around[0]), ...side(k0, K, around[1])]));
  }
  canvas.addEventListener("wheel", (event) => {
    if (!options.zoom || !(event.ctrlKey || event.metaKey || document.activeElement === canvas)) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, place(event) ?? undefined);
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.5, place(event) ?? undefined));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => options.zoom?.([0, names[0].length, 0, names[1].length]), Enter: () => at && options.pick?.(at, event) }[event.key];
    if ((!step && !act) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (!step) return act();
    const [r, c] = at ?? [0, 0];
    if (Q && K) show(at ? [Math.min(Math.max(r + step[0], 0), Q - 1), Math.min(Math.max(c + step[1], 0), K - 1)] : [0, 0]);
  });
  paint();
  return { node: box, mark: (found) => show(found, false), zoom };
}

// A weight as a share of the largest, for a colour.
function shareOf(value, max, lowest) {
  if (!lowest) return value / max;
  return value > lowest && max > lowest ? Math.log(value / lowest) / Math.log(max / lowest) : 0;
}

// The step of a ramp for a weight; what is less than `least`, a share of the largest, has that of 0.
export function stepOf(value, { max, least = 0, lowest, signed = false }) {
  const most = max || 1;
  const share = Math.abs(value) < least * most ? 0 : Math.max(Math.min(shareOf(value, most, lowest), 1), -1);
  return Math.round(255 * (signed ? (share + 1) / 2 : Math.max(share, 0)));
}

// The colours from 0 (or -max, or the lowest of a logarithmic scale) to max.
export function scale(max, signed = false, lowest = 0) {
  const ramp = colours(signed ? "Both" : "");
  const bar = h("i", { style: { background: `linear-gradient(to right, ${[0, 51, 102, 153, 204, 255].map((i) => css(ramp[i])).join(", ")})` } });
  return h("span", { className: "scale" }, signed ? number(-max, 2) : lowest ? number(lowest) : "0", bar, max >= 0.01 || !max ? number(max, 2) : number(max, 4));
}
