"""Golden numbers of GNMT: logits, weights, loss and gradients, in PyTorch (Wu et al. 2016, section 3).

    /opt/work/venv/bin/python gnmt_golden.py        writes gnmt.safetensors

Sentence by sentence and step by step, as the paper writes it; every layer is torch.nn.LSTM. Layouts, loss and
sentences are those of models_golden.py.
"""

import torch

import models_golden
from models_golden import HERE, GoldenFile, vocabularies


def gnmt(w, source, inputs):
    config = w.config
    n, a, layers = config["hidden"], config["attention"], config["layers"]
    zeros = torch.zeros(n, dtype=w.draw.dtype)

    xs = w.source_table()[source]
    forward, _, _ = w.lstm_layer("encoder_forward", xs, zeros, zeros)
    backward, h, c = w.lstm_layer("encoder_backward", xs, zeros, zeros, reverse=True)
    xs, states = torch.cat([forward, backward], 1), [(h, c)]
    for layer in range(2, layers + 1):
        output, h, c = w.lstm_layer(f"encoder.{layer - 2}", xs, zeros, zeros)
        xs = output + xs if layer >= 3 else output
        states.append((h, c))

    score = "attention.score.Additive."
    keys = w.linear(score + "key", xs, a, bias=True, scale=2.0)
    logits, weights = [], []
    for y in w.target_table()[inputs]:
        query = w.linear(score + "query", states[0][0], a, bias=False, scale=2.0)
        alpha = torch.softmax(torch.tanh(query + keys) @ w(score + "vector", a, scale=2.0), 0)
        context = alpha @ xs
        for layer in range(1, layers + 1):
            read = torch.cat([y, context])[None]
            output, h, c = w.lstm_layer(f"decoder.{layer - 1}", read, *states[layer - 1])
            states[layer - 1] = (h, c)
            y = output[0] + y if layer >= 3 else output[0]
        logits.append(w.logits(y))
        weights.append(alpha)
    return torch.stack(logits), torch.stack(weights)


def config(layers, tie="none", embedding=3, hidden=5, attention=4):
    return {"kind": "gnmt", **vocabularies(tie), "embedding": embedding if tie == "none" else hidden,
            "hidden": hidden, "layers": layers, "attention": attention, "embedding_dropout": 0.0,
            "layer_dropout": 0.0, "annotation_dropout": 0.0, "output_dropout": 0.0}


golden = GoldenFile()
models_golden.MODELS["gnmt"] = gnmt
models_golden.VARIANTS["gnmt"] = "Gnmt"
for layers in (2, 3, 4, 8):
    golden.case(f"gnmt-{layers}-layers", models_golden.model_case(config(layers)), kind="gnmt",
                config=config(layers))
for tie in ("target", "all"):
    case = config(3, tie, hidden=4)
    golden.case(f"gnmt-tie-{tie}", models_golden.model_case(case), kind="gnmt", config=case)

if __name__ == "__main__":
    golden.save(HERE / "gnmt.safetensors")
