"""ONNX Runtime's side of attention.py: its MultiHeadAttention on the CPU, forward only."""

import json
import sys
import time

import numpy
import onnxruntime
from onnx import TensorProto, helper

from attention_common import numbers, probe, questions

DTYPES = {"f32": TensorProto.FLOAT}


def session(question, threads):
    names = ["query", "key", "value"]
    kind = DTYPES[question.dtype]
    node = helper.make_node(
        "MultiHeadAttention", names, ["output"], domain="com.microsoft",
        num_heads=question.heads, unidirectional=int(question.causal),
    )
    graph = helper.make_graph(
        [node], "attention",
        [helper.make_tensor_value_info(name, kind, None) for name in names],
        [helper.make_tensor_value_info("output", kind, None)],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def answer(question, threads):
    if question.kind not in ("forward", "decode") or question.dtype not in DTYPES:
        return {"error": "ONNX Runtime has no such kernel on the CPU"}
    if question.heads != question.key_heads:
        return {"error": "MultiHeadAttention has no grouped queries"}
    feeds = {}
    for seed, name in enumerate(("query", "key", "value"), start=1):
        length = question.queries if name == "query" else question.keys
        array = numbers(seed, (question.batch, question.heads, length, question.dim))
        # Its layout is [batch, length, heads * dim].
        array = array.transpose(0, 2, 1, 3).reshape(question.batch, length, -1)
        feeds[name] = numpy.ascontiguousarray(array)
    run = session(question, threads)
    seconds = []
    run.run(None, feeds)
    for _ in range(question.repeats):
        start = time.perf_counter()
        (output,) = run.run(None, feeds)
        seconds.append(time.perf_counter() - start)
    output = output.reshape(question.batch, question.queries, question.heads, question.dim)
    return {"seconds": seconds, "probe": probe(output.transpose(0, 2, 1, 3))}


if __name__ == "__main__":
    for question in questions():
        print(json.dumps(answer(question, int(sys.argv[1]))), flush=True)
