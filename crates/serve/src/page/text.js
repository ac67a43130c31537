// Tokens coloured by what the chosen ones attend to, or by who attends to them.
import {
  NOT_EXPLANATION, axes, byChoice, choice, colourOf, css, currentHeads, currentMap, h, headChips, headsName, ink, largest, list, mapName, mapOptions, note, number,
  readout, roving, say, select, set, state, sums, tableButton, token, tools, wordsChoice,
} from "./common.js";
import { scale } from "./map.js";

const MOST = 4000;

// Buttons for the entries of an axis, coloured later by `paint(values, max)`.
export function tokenList(side, label, chosen, { preview, pick, key, disabled }) {
  const buttons = side.labels.slice(0, MOST).map((text, i) => h("button", {
    type: "button", "data-item": "", "data-index": i, "data-focus": `${key}-${i}`, className: `word${side.special.includes(i) ? " special" : ""}`,
    "aria-pressed": disabled ? null : String(chosen.includes(i)),
    onclick: (event) => pick?.(i, event), onmouseenter: () => preview?.(i), onmouseleave: () => preview?.(null), onfocus: () => preview?.(i), onblur: () => preview?.(null),
  }, token(text)));
  const box = h("div", { className: "tokens", role: "group", "aria-label": label }, buttons);
  roving(box, () => {
    const first = buttons[0]?.offsetTop;
    const next = buttons.findIndex((button) => button.offsetTop > first);
    return next < 1 ? buttons.length : next;
  });
  const paint = (values, max) => buttons.forEach((button, i) => {
    const colour = colourOf(max ? values[i] / max : 0);
    button.style.background = values && values[i] > 0.004 * max ? css(colour) : "";
    button.style.color = values && values[i] > 0.004 * max ? ink(colour) : "";
    button.title = values ? number(values[i], 4) : "";
  });
  return { box, paint, buttons };
}

export const toggled = (chosen, i, event) => {
  if (!event.shiftKey && state.several !== "1") return chosen.length === 1 && chosen[0] === i ? [] : [i];
  return chosen.includes(i) ? chosen.filter((one) => one !== i) : [...chosen, i].sort((a, b) => a - b);
};

// For fingers, which have no Shift.
export const severalButton = () => h("button", {
  type: "button", className: "plain", textContent: "Add up", "aria-pressed": String(state.several === "1"), "data-focus": "several",
  title: "A click adds to what is chosen, as with Shift", onclick: () => set({ several: state.several === "1" ? "" : "1" }),
});

export async function viewText(trace) {
  const index = currentMap(trace);
  const map = trace.maps[index];
  const heads = currentHeads(map);
  const about = await axes(trace, index);
  const from = state.direction !== "to";
  const asked = from ? about.queries : about.keys;
  const told = from ? about.keys : about.queries;
  const one = about.same;
  const chosen = list(state.chosen).filter((i) => i < asked.labels.length);
  const bar = tools(
    select("Map", "map", mapOptions(trace), index, (value) => set({ map: value, chosen: "" })),
    h("div", { className: "choice", role: "group", "aria-label": "Direction" }, [["from", "What they attend to"], ["to", "Who attends to them"]].map(([value, name]) => h("button", {
      type: "button", textContent: name, "aria-pressed": String((state.direction || "from") === value), "data-focus": `direction-${value}`,
      onclick: () => set({ direction: value, chosen: one ? state.chosen : "" }),
    }))),
    byChoice(map), wordsChoice(trace), severalButton(), tableButton(), headChips(map));

  const pick = (i, event) => set({ chosen: toggled(chosen, i, event).join() });
  const legend = h("span", {});
  const list1 = tokenList(asked, "Tokens to choose", chosen, { key: "ask", pick, preview: (i) => preview(i) });
  const list2 = one ? list1 : tokenList(told, "Tokens that are coloured", [], { key: "tell", disabled: true, preview: (i) => i !== null && current && tell(i) });
  const top = h("div", { className: "top" });
  let current = null;
  let asking = 0;
  async function show(which) {
    const mine = ++asking;
    current = which.length ? await sums(trace, index, heads, which, from ? "from" : "to") : null;
    if (mine !== asking) return;
    const max = current ? largest(current) : 0;
    list2.paint(current ?? [], max);
    legend.replaceChildren(...(current ? [scale(max)] : []));
    const names = which.map((i) => asked.labels[i]);
    if (!current) {
      say(h("span", { className: "faint", textContent: "Point at a token; click to keep it, Shift and click to add up several." }));
      return top.replaceChildren();
    }
    const best = Array.from(current, (value, i) => [value, i]).sort((a, b) => b[0] - a[0]).filter(([value]) => value > 0);
    say(...names.slice(0, 8).flatMap((name, i) => [i ? " + " : "", token(name)]), names.length > 8 ? " …" : "", from ? " → " : " ← ",
      ...best.slice(0, 3).flatMap(([value, i]) => [token(told.labels[i]), " ", h("b", { textContent: number(value) }), "  "]));
    const rows = best.slice(0, state.table === "1" ? 200 : 8);
    top.replaceChildren(h("table", {}, h("caption", { textContent: `${from ? "Attended to by" : "Attending to"} ${names.length === 1 ? "the chosen token" : `${names.length} tokens, summed`} · ${mapName(map)} · ${headsName(heads, map)}` }),
      h("tbody", {}, rows.map(([value, i]) => h("tr", {}, h("th", { scope: "row" }, token(told.labels[i])), h("td", { className: "faint", textContent: i }),
        h("td", {}, h("i", { className: "meter", style: { width: `${Math.max(90 * value / max, 1)}px` } })), h("td", { textContent: number(value, 4) }))))));
  }
  const tell = (i) => say(token(told.labels[i]), " ", h("b", { textContent: number(current[i], 4) }));
  // What is pointed at shows its own weights; what is chosen stays when the pointer leaves.
  const preview = (i) => show(i === null || chosen.includes(i) ? chosen : chosen.length ? chosen : [i]).then(() => {
    if (i !== null && chosen.length && one && current) tell(i);
  });
  await show(chosen);
  // As a file: a row for each chosen token, and their sum.
  list1.box.panel = async () => {
    const which = chosen.length ? chosen : [0];
    const rows = await Promise.all([...which.map((i) => [i]), ...(which.length > 1 ? [which] : [])].map((some) => sums(trace, index, heads, some, from ? "from" : "to")));
    const names = [...which.map((i) => asked.labels[i]), "sum"].slice(0, rows.length);
    const title = `${mapName(map)} · ${headsName(heads, map)}, ${from ? "what they attend to" : "who attends to them"}`;
    return { title, rows: rows.length, columns: told.labels.length, values: rows.flatMap((row) => [...row]), labels: [names, told.labels] };
  };
  const headings = one ? [h("h2", { textContent: about.names[0] === "query" ? "Text" : about.names[0].replace(" (query)", "") }), list1.box]
    : [h("h2", { textContent: `${about.names[from ? 0 : 1]}: choose` }), list1.box, h("h2", { textContent: `${about.names[from ? 1 : 0]}: coloured` }), list2.box];
  const cut = Math.max(asked.labels.length, told.labels.length) > MOST && h("p", { className: "faint", textContent: `The first ${MOST} tokens.` });
  return [bar, readout, h("div", { className: "texts" }, h("div", {}, headings, cut, legend), top), note(NOT_EXPLANATION)];
}
