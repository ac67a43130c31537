"""Golden numbers of the LSTMN encoder-decoder: logits, weights, loss and gradients, in PyTorch (Cheng, Dong,
Lapata 2016, equations 5 to 17 and section 4).

Run in this folder: `python lstmn_golden.py`, which writes lstmn.safetensors.

Sentence by sentence and step by step, as the paper writes it. Layouts, loss and sentences are those of
models_golden.py.
"""

import torch

import models_golden
from models_golden import HERE, GoldenFile, vocabularies


class Lstmn:
    """A network with its tape."""

    def __init__(self, w, name, inputs, size, attention):
        self.w, self.name, self.inputs, self.n, self.a = w, name, inputs, size, attention
        self.hidden, self.cells = [], []
        self.zeros = torch.zeros(size, dtype=w.draw.dtype)
        self.h_summary = self.g_summary = self.zeros

    def additive(self, prefix, query, keys):
        name = f"{self.name}.{prefix}"
        keys = self.w.linear(f"{name}.key", keys, self.a, bias=True, scale=2.0)
        query = self.w.linear(f"{name}.query", query, self.a, bias=False, scale=2.0)
        return torch.softmax(torch.tanh(query + keys) @ self.w(f"{name}.vector", self.a, scale=2.0), 0)

    def step(self, x, source=None):
        """h_t, and with a source (its hidden states, its cells) what was read of it."""
        n, w, c_summary = self.n, self.w, self.zeros
        if self.hidden:
            tape = torch.stack(self.hidden)
            s = self.additive("attention", torch.cat([x, self.h_summary]), tape)
            self.h_summary, c_summary = s @ tape, s @ torch.stack(self.cells)
        gates = w.linear(f"{self.name}.cell.input", x, 4 * n, bias=True, scale=2.0)
        gates = gates + self.h_summary @ w(f"{self.name}.cell.recurrent", n, 4 * n)
        i, f, g, o = gates.chunk(4)
        c = torch.sigmoid(f) * c_summary + torch.sigmoid(i) * torch.tanh(g)
        p = None
        if source is not None:
            gamma, alpha = source
            p = self.additive("fusion.attention", torch.cat([x, self.g_summary]), gamma)
            self.g_summary = p @ gamma
            gate = w.linear(f"{self.name}.fusion.input", x, n, bias=True)
            gate = gate + self.g_summary @ w(f"{self.name}.fusion.recurrent", n, n)
            c = c + torch.sigmoid(gate) * (p @ alpha)
        h = torch.sigmoid(o) * torch.tanh(c)
        self.hidden.append(h)
        self.cells.append(c)
        return h, p


def lstmn_translation(w, source, inputs):
    config = w.config
    m, n, a = config["embedding"], config["hidden"], config["attention"]
    deep = config["fusion"] == "deep"
    encoder = Lstmn(w, "encoder", m, n, a)
    for x in w.source_table()[source]:
        encoder.step(x)
    gamma, alpha = torch.stack(encoder.hidden), torch.stack(encoder.cells)

    decoder = Lstmn(w, "decoder", m if deep else m + n, n, a)
    h = decoder.zeros
    logits, weights = [], []
    for y in w.target_table()[inputs]:
        if deep:
            h, p = decoder.step(y, (gamma, alpha))
        else:
            score = "attention.score.Additive."
            keys = w.linear(score + "key", gamma, a, bias=True, scale=2.0)
            query = w.linear(score + "query", h, a, bias=False, scale=2.0)
            p = torch.softmax(torch.tanh(query + keys) @ w(score + "vector", a, scale=2.0), 0)
            h, _ = decoder.step(torch.cat([y, p @ gamma]))
        logits.append(w.logits(torch.tanh(w.linear("readout", h, m, bias=True))))
        weights.append(p)
    return torch.stack(logits), torch.stack(weights)


def config(fusion, tie="none"):
    return {"kind": "lstmn-translation", **vocabularies(tie), "embedding": 3, "hidden": 5, "attention": 4,
            "fusion": fusion, "embedding_dropout": 0.0, "annotation_dropout": 0.0, "output_dropout": 0.0}


golden = GoldenFile()
models_golden.MODELS["lstmn-translation"] = lstmn_translation
models_golden.VARIANTS["lstmn-translation"] = "LstmnTranslation"
for fusion, tie in (("shallow", "none"), ("deep", "none"), ("shallow", "all"), ("deep", "target")):
    case = config(fusion, tie)
    golden.case(f"lstmn-{fusion}-tie-{tie}", models_golden.model_case(case), kind="lstmn-translation", config=case)

if __name__ == "__main__":
    golden.save(HERE / "lstmn.safetensors")
