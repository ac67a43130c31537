"""The ONNX Runtime side of the comparison of language models, for encoders in f32.

    echo '{"work": "encode", "model": "minilm", "batch": 32, "length": 64}' | python language_model_onnx.py --folder FOLDER

Questions and answers are those of language_model_torch.py, which makes the checkpoints; only `encode` and `memory` are
answered. A graph that FOLDER lacks is made there by a process of its own: torch.onnx, with batch and length left open, then
onnxruntime's optimizer for BERT (`Attention`, `SkipLayerNormalization`, `BiasGelu` in one operation each). "graph" may be
"fused" or "plain"; left out, both are timed when a question comes for the first time, and the faster one stays.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy
import onnxruntime

from language_model_common import MODELS, Unsupported, checkpoint, ids, serve
from memory import peak_bytes

GRAPHS = ("fused", "plain")


def export(folder, model):
    """Writes plain.onnx and fused.onnx."""
    import torch
    import transformers
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    from language_model_torch import made

    place = made(folder, model, "f32")
    encoder = transformers.BertModel.from_pretrained(place, add_pooling_layer=False, attn_implementation="eager").eval()

    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids, attention_mask):
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    example = torch.ones(2, 8, dtype=torch.long)
    plain, fused = place / "plain.onnx", place / "fused.onnx"
    axes = {0: "batch", 1: "length"}
    with torch.inference_mode():
        torch.onnx.export(
            States(), (example, example), str(plain), input_names=["input_ids", "attention_mask"], output_names=["states"],
            dynamic_axes={name: axes for name in ("input_ids", "attention_mask", "states")}, opset_version=17, dynamo=False,
        )
    options = FusionOptions("bert")
    config = encoder.config
    fused_model = optimizer.optimize_model(
        str(plain), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=1,
        optimization_options=options, use_gpu=False,
    )
    print(fused_model.get_fused_operator_statistics(), file=sys.stderr)
    fused_model.save_model_to_file(str(fused))


class Encoders:
    """The side: the sessions last used, and the graph that is faster for each question."""

    def __init__(self, folder, threads):
        self.folder, self.threads = folder, threads
        self.name, self.sessions, self.faster = None, {}, {}

    def session(self, model, graph):
        if model != self.name:
            self.name, self.sessions = model, {}
        if graph not in self.sessions:
            path = checkpoint(self.folder, model, "f32") / f"{graph}.onnx"
            if not path.exists():
                command = [sys.executable, Path(__file__), "--folder", self.folder, "--export", model]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.threads
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
            self.sessions[graph] = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return self.sessions[graph]

    def encode(self, question, graph):
        session = self.session(question["model"], graph)
        vocabulary = MODELS[question["model"]][1].get("vocab_size", 30522)
        batch = numpy.array(ids(question["batch"], question["length"], vocabulary))
        feeds = {"input_ids": batch, "attention_mask": numpy.ones_like(batch)}
        started = time.perf_counter()
        (states,) = session.run(None, feeds)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "probe": states[-1, -1, :4].tolist()}

    def answer(self, question):
        if question["work"] == "memory":
            return {"peak_bytes": peak_bytes()}
        kind = MODELS.get(question["model"], ("no such model",))[0]
        if question["work"] != "encode" or kind != "BertModel" or question.get("dtype", "f32") != "f32":
            raise Unsupported("only encoders, in f32")
        key = str(question)
        if key not in self.faster:
            times = {}
            for graph in [question["graph"]] if "graph" in question else GRAPHS:
                self.encode(question, graph)
                times[graph] = min(self.encode(question, graph)["seconds"] for _ in range(3))
            self.faster[key] = min(times, key=times.get)
        graph = self.faster[key]
        return {**self.encode(question, graph), "graph": graph}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="of the checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--export", metavar="MODEL", help="only writes the graphs of a model")
    arguments = parser.parse_args()
    if arguments.export:
        export(arguments.folder, arguments.export)
    else:
        serve(Encoders(arguments.folder, arguments.threads).answer)


if __name__ == "__main__":
    main()
