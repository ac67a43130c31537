// What a server would answer, from the data that stand in a page that is a file.

const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
const numbers = ({ largest, least, shares }) => Float32Array.from(new Uint16Array(bytes(shares).buffer), (share) => least + (largest - least) * share / 65535);
const listed = (text) => (text ?? "").split(",").filter(Boolean).flatMap((part) => {
  const [first, last = first] = part.split("-").map(Number);
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
});
const refused = (error) => Response.json({ error }, { status: 400 });
const weights = (rows, columns, values) => new Response(values, { headers: { "x-rows": rows, "x-columns": columns } });

export function answers({ catalogue, entries, address }) {
  const decoded = new Map();
  const once = (key, make) => { if (!decoded.has(key)) decoded.set(key, make()); return decoded.get(key); };

  // The weights of one query, `[keys]`: of one head, or several as one. A head that masked the whole row is left out of a mean.
  function rows(part, index, heads, by) {
    const { heads: count, normalized } = part.weights[index];
    const all = once(part.weights[index], () => numbers(part.weights[index].numbers));
    const [Q, K] = [part.axes[index].queries.labels.length, part.axes[index].keys.labels.length];
    const chosen = heads.length ? heads : Array.from({ length: count }, (_, head) => head);
    const of = (head, query) => all.subarray((head * Q + query) * K, (head * Q + query + 1) * K);
    return { Q, K, row: (query) => {
      if (chosen.length === 1) return of(chosen[0], query);
      const out = new Float32Array(K);
      let used = 0;
      for (const head of chosen) {
        const row = of(head, query);
        if (by === "max") { for (let k = 0; k < K; k++) out[k] = Math.max(out[k], row[k]); continue; }
        if (normalized && row.every((weight) => weight === 0)) continue;
        used++;
        for (let k = 0; k < K; k++) out[k] += row[k];
      }
      return used ? out.map((sum) => sum / used) : out;
    } };
  }

  function window(part, index, asked) {
    const { Q, K, row } = rows(part, index, listed(asked.get("heads")), asked.get("by"));
    const [q0, k0] = ["q0", "k0"].map((key) => Number(asked.get(key) ?? 0));
    const [q1, k1] = [Math.min(Number(asked.get("q1") ?? Q), Q), Math.min(Number(asked.get("k1") ?? K), K)];
    const side = Number(asked.get("side") ?? 1024);
    const [R, C] = [Math.min(q1 - q0, side), Math.min(k1 - k0, side)];
    const start = (first, length, cell, cells) => first + Math.floor(cell * length / cells);
    const values = new Float32Array(R * C);
    const most = asked.get("pool") === "max";
    for (let r = 0; r < R; r++) {
      const [top, bottom] = [start(q0, q1 - q0, r, R), start(q0, q1 - q0, r + 1, R)];
      for (let query = top; query < bottom; query++) {
        const from = row(query);
        for (let c = 0; c < C; c++) {
          const [left, right] = [start(k0, k1 - k0, c, C), start(k0, k1 - k0, c + 1, C)];
          for (let key = left; key < right; key++) values[r * C + c] = most ? Math.max(values[r * C + c], from[key]) : values[r * C + c] + from[key] / ((bottom - top) * (right - left));
        }
      }
    }
    return weights(R, C, values);
  }

  function sums(part, index, asked) {
    const { Q, K, row } = rows(part, index, listed(asked.get("heads")), asked.get("by"));
    const chosen = listed(asked.get("chosen"));
    const from = asked.get("direction") !== "to";
    const out = new Float32Array(from ? K : Q);
    if (from) for (const query of chosen) row(query).forEach((weight, key) => { out[key] += weight; });
    else for (let query = 0; query < Q; query++) { const all = row(query); for (const key of chosen) out[query] += all[key]; }
    return weights(1, out.length, out);
  }

  function followed(part, index, what, asked, kind) {
    const found = part.stacks.find((one) => one.kind === kind)?.[what];
    if (!found) return refused("only layers of self-attention are followed");
    if (found.Err) return refused(found.Err);
    const all = once(found, () => numbers(found.Ok));
    const length = part.axes[index].queries.labels.length;
    if (what === "rollout") return weights(length, length, all);
    const query = Number(asked.get("query"));
    return weights(1, length, all.slice(query * length, (query + 1) * length));
  }

  async function answer(path) {
    const [place, text] = path.split("?");
    const asked = new URLSearchParams(text);
    if (place === "api/traces") return Response.json(catalogue);
    const [, id, what] = place.match(/^api\/trace\/(\d+)\/(\w+)$/) ?? [];
    const entry = entries[id];
    const part = asked.get("words") === "true" ? entry?.words ?? entry?.pieces : entry?.pieces;
    const index = Number(asked.get("map") ?? 0);
    if (what === "generation" && entry?.generation) return Response.json(entry.generation);
    if (part && what === "overview") return Response.json(part.overviews[asked.get("pool") === "max" ? 1 : 0]);
    if (part?.axes[index]) {
      if (what === "axes") return Response.json(part.axes[index]);
      if (what === "window") return window(part, index, asked);
      if (what === "sums") return sums(part, index, asked);
      if (what === "rollout" || what === "flow") return followed(part, index, what, asked, catalogue.traces[id].maps[index].kind);
    }
    return refused("this page is a file: what it does not hold needs `regard serve`");
  }
  return { answer, address, image: (id) => entries[id].image };
}
