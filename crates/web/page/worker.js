// Answers what the page would ask a server, with the model that its address names.
import init, { Viewer } from "./regard_web.js";

const model = new URL(import.meta.url).searchParams.get("model");

async function bytes(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: the server answered ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}
async function start() {
  const [file] = await Promise.all([model ? bytes(`models/${model}.safetensors`) : new Uint8Array(), init()]);
  return new Viewer(model, file);
}
const started = start();

function opened(viewer, path, body) {
  const name = new URLSearchParams(path.split("?")[1]).get("name") ?? "trace";
  const first = viewer.open(name, body);
  return { status: 200, headers: [["content-type", "application/json"]], body: JSON.stringify({ first }) };
}
function answered(viewer, method, path, body) {
  const answer = viewer.answer(method, path, body);
  const headers = answer.headers;
  const pairs = Array.from({ length: headers.length / 2 }, (_, i) => headers.slice(2 * i, 2 * i + 2));
  return { status: answer.status, headers: pairs, body: answer.body };
}
onmessage = async ({ data: { id, method, path, body } }) => {
  try {
    const viewer = await started;
    const found = path.startsWith("api/open?") ? opened(viewer, path, body) : answered(viewer, method, path, body);
    postMessage({ id, ...found });
  } catch (error) {
    // What failed in the middle of its work is not asked again.
    const sentence = error instanceof WebAssembly.RuntimeError ? "the page's program has failed: reload the page" : error.message;
    postMessage({ id, error: sentence });
  }
};
