// A page without a server: its worker computes what a server would answer (crates/web).
import { h } from "./elements.js";

// Name, what it does, and what it is shown with: a text, or an image beside the models.
const MODELS = [
  ["multi30k-en-de", "Translate", { text: "A man in a red shirt is riding a bicycle." }],
  ["scenes-captioner", "Describe an image", { image: "scene.png" }],
  ["", "Explain, and open traces"],
];

export function computing() {
  const model = new URLSearchParams(location.search).get("model") ?? MODELS[0][0];
  const worker = new Worker(`worker.js?${new URLSearchParams({ model })}`, { type: "module" });
  const waiting = new Map();
  let last = 0;
  const settle = (id, response) => { waiting.get(id)?.(response); waiting.delete(id); };
  const failed = (error) => Response.json({ error }, { status: 500 });
  worker.onmessage = ({ data: { id, status, headers, body, error } }) => settle(id, error === undefined ? new Response(body, { status, headers }) : failed(error));
  // Why the worker answers no more.
  let dead = "";
  worker.onerror = (event) => {
    dead = `the page's worker failed: ${event.message || "reload the page"}`;
    for (const id of [...waiting.keys()]) settle(id, failed(dead));
  };
  const addresses = new Map();

  async function answer(path, { method = "GET", body = "" } = {}) {
    const bytes = new Uint8Array(await new Response(body).arrayBuffer());
    if (dead) return failed(dead);
    const id = ++last;
    const answered = new Promise((resolve) => { waiting.set(id, resolve); });
    worker.postMessage({ id, method, path, body: bytes }, [bytes.buffer]);
    return answered;
  }
  // The images of traces get addresses before they are shown.
  async function follow(traces) {
    for (const { id, image } of traces) {
      if (!image || addresses.has(id)) continue;
      addresses.set(id, URL.createObjectURL(await (await answer(`api/trace/${id}/image`)).blob()));
    }
  }
  // What a page that was opened without an address of its own asks its model.
  async function example() {
    const { text = "", image } = MODELS.find(([name]) => name === model)?.[2] ?? {};
    if (!image) return { text, image: null };
    const found = await fetch(`models/${image}`);
    if (!found.ok) throw new Error(`models/${image}: the server answered ${found.status}`);
    return { text, image: new File([await found.blob()], image) };
  }
  const chooser = (opened) => [
    h("label", {}, h("span", { className: "unseen", textContent: "Model" }), h("select", {
      id: "model", onchange: (event) => { location.href = `?${new URLSearchParams({ model: event.target.value })}`; },
    }, MODELS.map(([value, name]) => h("option", { value, textContent: name, selected: value === model })))),
    h("label", { className: "plain", title: "A trace that regard wrote (safetensors). It does not leave this page." }, "Open a trace ",
      h("input", { type: "file", id: "open", className: "unseen", accept: ".safetensors", onchange: (event) => opened(event.target.files[0]) })),
  ];
  return { answer, follow, chooser, example, image: (id) => addresses.get(id) };
}
