"""Makes models.safetensors: expected logits, weights, loss and gradients of whole translation models.

Run in this folder: `python models_golden.py`. Made with Python 3, torch 2.15.0, numpy 2.4.6,
safetensors 0.8.0.

Written from the papers, one sentence at a time, so that no padding is involved:

- rnnsearch: Bahdanau, Cho, Bengio 2014, App. A.1 and A.2
- luong: Luong, Pham, Manning 2015, sections 3.1 to 3.3
- seq2seq: Cho et al. 2014, App. A.1 (gru); Sutskever, Vinyals, Le 2014 (lstm: torch.nn.LSTM)

The loss is PyTorch's cross_entropy with label smoothing 0.1, the mean over all target tokens. Layouts are
those of regard: x W with W [inputs, outputs]; gates side by side, GRU z | r | h, LSTM i | f | g | o.
"""

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "nn" / "tests" / "golden"))
from golden_file import GoldenFile  # noqa: E402

golden = GoldenFile()
START, END = 1, 2
SOURCES = [[5, 7, 4, 8], [6], [8, 5, 5]]
TARGETS = [[4, 6], [7, 5, 6, 4], [5]]
SMOOTHING = 0.1
VARIANTS = {"rnnsearch": "RnnSearch", "luong": "Luong", "seq2seq": "Seq2Seq"}


class Weights:
    """The weights of one model by their names in regard."""

    def __init__(self, draw, config):
        self.draw, self.config = draw, config
        self.prefix = VARIANTS[config["kind"]] + "."

    def __call__(self, name, *shape, scale=0.5):
        return self.draw(self.prefix + name, *shape, scale=scale)

    def linear(self, name, x, outputs, bias, scale=0.5):
        y = x @ self(name + ".weight", x.shape[-1], outputs, scale=scale)
        return y + self(name + ".bias", outputs) if bias else y

    def table(self, side):
        sizes = self.config[side + "_vocabulary"], self.config["embedding"]
        return self(f"tables.{side}.weight", *sizes, scale=2.0)

    def source_table(self):
        return self.table("target" if self.config["tie"] == "all" else "source")

    def target_table(self):
        return self.table("target")

    def logits(self, readout):
        vocabulary = self.config["target_vocabulary"]
        if self.config["tie"] == "none":
            return self.linear("tables.output", readout, vocabulary, bias=True)
        return readout @ self.target_table().T + self("tables.output_bias", vocabulary)

    def gru(self, name, inputs, size):
        """The nine parts of a GRU: W, b and U of z, r and the candidate."""
        parts = (
            self(name + ".input.weight", inputs, 3 * size),
            self(name + ".input.bias", 3 * size),
            self(name + ".recurrent", size, 3 * size),
        )
        return [part.chunk(3, -1) for part in parts]

    def lstm_layer(self, name, xs, h, c, reverse=False):
        """One layer over xs [time, inputs]: every h, by position, and the last h and c."""
        n = len(h)
        w = self(name + ".input.weight", xs.shape[1], 4 * n, scale=2.0)
        b = self(name + ".input.bias", 4 * n)
        u = self(name + ".recurrent", n, 4 * n, scale=1.0)
        module = torch.nn.LSTM(xs.shape[1], n, dtype=self.draw.dtype)
        weights = {"weight_ih_l0": w.T, "weight_hh_l0": u.T, "bias_ih_l0": b, "bias_hh_l0": 0 * b}
        read = xs.flip(0) if reverse else xs
        output, (h, c) = torch.func.functional_call(module, weights, (read, (h[None], c[None])))
        return (output.flip(0) if reverse else output), h[0], c[0]


def maxout(pre):
    return pre.reshape(-1, 2).amax(1)


# --- Bahdanau 2014 ---------------------------------------------------------------------------------------


def bahdanau_step(parts, x, h, context=0.0):
    """z, r = sigma(W x + U h + C c); h' = (1 - z) h + z tanh(W x + U [r h] + C c)."""
    (wz, wr, wh), (bz, br, bh), (uz, ur, uh) = parts
    cz, cr, ch = context.chunk(3) if torch.is_tensor(context) else (context,) * 3
    z = torch.sigmoid(x @ wz + bz + h @ uz + cz)
    r = torch.sigmoid(x @ wr + br + h @ ur + cr)
    return (1 - z) * h + z * torch.tanh(x @ wh + bh + (r * h) @ uh + ch)


def rnnsearch(w, source, inputs):
    config = w.config
    m, n, a, l = (config[key] for key in ("embedding", "hidden", "attention", "maxout"))
    xs = w.source_table()[source]
    zeros = torch.zeros(n, dtype=w.draw.dtype)
    forward, backward = [zeros], [zeros]
    for x in xs:
        forward.append(bahdanau_step(w.gru("encoder_forward", m, n), x, forward[-1]))
    for x in xs.flip(0):
        backward.insert(0, bahdanau_step(w.gru("encoder_backward", m, n), x, backward[0]))
    annotations = torch.cat([torch.stack(forward[1:]), torch.stack(backward[:-1])], 1)
    s = torch.tanh(w.linear("initial", backward[0], n, bias=True))
    score = "attention.score.Additive."
    keys = w.linear(score + "key", annotations, a, bias=True, scale=2.0)
    logits, weights = [], []
    for y in w.target_table()[inputs]:
        query = w.linear(score + "query", s, a, bias=False, scale=2.0)
        e = torch.tanh(query + keys) @ w(score + "vector", a, scale=2.0)
        alpha = torch.softmax(e, 0)
        c = alpha @ annotations
        readout = (
            w.linear("readout_state", s, 2 * l, bias=True)
            + w.linear("readout_embedding", y, 2 * l, bias=False)
            + w.linear("readout_context", c, 2 * l, bias=False)
        )
        logits.append(w.logits(maxout(readout)))
        weights.append(alpha)
        context = w.linear("decoder_context", c, 3 * n, bias=False)
        s = bahdanau_step(w.gru("decoder", m, n), y, s, context)
    return torch.stack(logits), torch.stack(weights)


# --- Luong 2015 ------------------------------------------------------------------------------------------


def luong_encoder(w, xs):
    """Annotations, and the last (h, c) of each layer."""
    config = w.config
    n, reading = config["hidden"], config["reading"]
    states = []
    for layer in range(config["layers"]):
        size = n // 2 if reading == "bidirectional" else n
        zeros = torch.zeros(size, dtype=w.draw.dtype)
        ways = {"forward": [False], "reversed": [True], "bidirectional": [False, True]}[reading]
        outputs = [
            w.lstm_layer(f"encoder.{layer}.directions.{k}.layers.0", xs, zeros, zeros, reverse)
            for k, reverse in enumerate(ways)
        ]
        xs, h, c = (torch.cat(part, -1) for part in zip(*outputs))
        states.append((h, c))
    return xs, states


def luong_weights(w, h, annotations, t):
    """alpha_t over the source for the current top state h."""
    config, length = w.config, len(annotations)
    n, score = len(h), config["score"]
    seen, factor = list(range(length)), 1.0
    prefix = "attention.score."
    if score == "dot":
        e = annotations @ h
    elif score == "general":
        e = annotations @ w(prefix + "General.key.weight", n, n, scale=2.0) @ h
    elif score == "concat":
        a = config["attention"]
        hidden = w.linear(prefix + "Additive.query", h, a, bias=False, scale=2.0)
        hidden = hidden + w.linear(prefix + "Additive.key", annotations, a, bias=True, scale=2.0)
        e = torch.tanh(hidden) @ w(prefix + "Additive.vector", a, scale=2.0)
    else:
        e = w.linear(prefix + "Location.weight", h, config["positions"], bias=False, scale=2.0)[:length]
        seen = seen[: config["positions"]]
    locality = config["locality"]
    if "monotonic" in locality:
        seen = [s for s in seen if abs(s - t) <= locality["monotonic"]["half_width"]]
    if "predictive" in locality:
        d = locality["predictive"]["half_width"]
        hidden = torch.tanh(w.linear("attention.predictor.hidden", h, n, bias=False))
        centre = length * torch.sigmoid(hidden @ w("attention.predictor.vector", n, scale=2.0))
        assert all(abs(abs(s - centre.item()) - d) > 1e-3 for s in seen), "near an edge"
        seen = [s for s in seen if abs(s - centre.item()) <= d]
        distance = torch.tensor(seen, dtype=w.draw.dtype) - centre
        factor = torch.exp(-(distance**2) / (2 * (d / 2) ** 2))
    alpha = torch.zeros(length, dtype=w.draw.dtype)
    if seen:
        alpha = alpha.index_put((torch.tensor(seen),), torch.softmax(e[seen], 0) * factor)
    return alpha


def luong(w, source, inputs):
    config, n = w.config, w.config["hidden"]
    annotations, states = luong_encoder(w, w.source_table()[source])
    attentional = torch.zeros(n, dtype=w.draw.dtype)
    logits, weights = [], []
    for t, y in enumerate(w.target_table()[inputs]):
        x = torch.cat([y, attentional]) if config["input_feeding"] else y
        for layer, (h, c) in enumerate(states):
            output, h, c = w.lstm_layer(f"decoder.layers.{layer}", x[None], h, c)
            states[layer], x = (h, c), output[0]
        alpha = luong_weights(w, x, annotations, t)
        combined = torch.cat([alpha @ annotations, x])
        attentional = torch.tanh(w.linear("combine", combined, n, bias=False))
        logits.append(w.logits(attentional))
        weights.append(alpha)
    return torch.stack(logits), torch.stack(weights)


# --- without attention -----------------------------------------------------------------------------------


def cho(w, source, inputs):
    m, n, l = (w.config[key] for key in ("embedding", "hidden", "maxout"))
    h = torch.zeros(n, dtype=w.draw.dtype)
    for x in w.source_table()[source]:
        h = bahdanau_step(w.gru("gru.encoder", m, n), x, h)  # its z is 1 - z of the paper
    c = torch.tanh(w.linear("gru.summary", h, n, bias=True))
    s = torch.tanh(w.linear("gru.initial", c, n, bias=True))
    (wz, wr, wh), (bz, br, bh), (uz, ur, uh) = w.gru("gru.decoder", m, n)
    cz, cr, ch = w.linear("gru.decoder_context", c, 3 * n, bias=False).chunk(3)
    logits = []
    for y in w.target_table()[inputs]:
        z = torch.sigmoid(y @ wz + bz + s @ uz + cz)
        r = torch.sigmoid(y @ wr + br + s @ ur + cr)
        s = z * s + (1 - z) * torch.tanh(y @ wh + bh + r * (s @ uh + ch))
        readout = (
            w.linear("gru.readout_state", s, 2 * l, bias=True)
            + w.linear("gru.readout_embedding", y, 2 * l, bias=False)
            + w.linear("gru.readout_context", c, 2 * l, bias=False)
        )
        logits.append(w.logits(maxout(readout)))
    return torch.stack(logits), None


def sutskever(w, source, inputs):
    xs, ys = w.source_table()[source], w.target_table()[inputs]
    zeros = torch.zeros(w.config["hidden"], dtype=w.draw.dtype)
    for layer in range(w.config["layers"]):
        xs, h, c = w.lstm_layer(f"lstm.encoder.layers.{layer}", xs, zeros, zeros)
        ys, _, _ = w.lstm_layer(f"lstm.decoder.layers.{layer}", ys, h, c)
    return w.logits(ys), None


def seq2seq(w, source, inputs):
    if w.config["reverse_source"]:
        source = source[::-1]
    return {"gru": cho, "lstm": sutskever}[w.config["cell"]](w, source, inputs)


# --- cases -----------------------------------------------------------------------------------------------

MODELS = {"rnnsearch": rnnsearch, "luong": luong, "seq2seq": seq2seq}


def model_case(config):
    def compute(draw):
        w = Weights(draw, config)
        steps = max(map(len, TARGETS)) + 1
        positions = max(map(len, SOURCES)) + 1
        logits = torch.zeros(steps, len(SOURCES), config["target_vocabulary"], dtype=draw.dtype)
        weights = torch.zeros(len(SOURCES), steps, positions, dtype=draw.dtype)
        loss = nll = 0.0
        for b, (source, target) in enumerate(zip(SOURCES, TARGETS)):
            source, inputs, outputs = [*source, END], [START, *target], torch.tensor([*target, END])
            found, seen = MODELS[config["kind"]](w, source, inputs)
            loss = loss + cross_entropy(found, outputs, label_smoothing=SMOOTHING, reduction="sum")
            nll = nll + cross_entropy(found, outputs, reduction="sum")
            logits[: len(inputs), b] = found.detach()
            if seen is not None:
                weights[b, : len(inputs), : len(source)] = seen.detach()
        loss = loss / sum(len(target) + 1 for target in TARGETS)
        outputs = {"loss": loss.reshape(1), "nll": nll.reshape(1), "logits": logits}
        if seen is not None:
            outputs["weights"] = weights
        return loss, outputs

    return compute


def add(name, config):
    golden.case(name, model_case(config), kind=config["kind"], config=config)


def vocabularies(tie):
    return {"source_vocabulary": 9, "target_vocabulary": 9 if tie == "all" else 8, "tie": tie}


def rnnsearch_config(tie, embedding, hidden, attention, maxout):
    return {"kind": "rnnsearch", **vocabularies(tie), "embedding": embedding, "hidden": hidden,
            "attention": attention, "maxout": maxout, "embedding_dropout": 0.0,
            "annotation_dropout": 0.0, "output_dropout": 0.0, "paper_initialisation": False}


def luong_config(score, locality, feeding, reading="reversed", layers=1, hidden=5, tie="none"):
    return {"kind": "luong", **vocabularies(tie), "embedding": 3 if tie == "none" else hidden,
            "hidden": hidden, "layers": layers, "score": score, "attention": 3, "locality": locality,
            "input_feeding": feeding, "reading": reading, "positions": 4, "embedding_dropout": 0.0,
            "layer_dropout": 0.0, "annotation_dropout": 0.0, "output_dropout": 0.0}


def seq2seq_config(cell, layers, reverse, tie="none"):
    embedding, hidden, maxout = {"none": (3, 5, 4), "target": (5, 5, 5), "all": (5, 5, 5)}[tie]
    return {"kind": "seq2seq", **vocabularies(tie), "embedding": embedding, "hidden": hidden,
            "layers": layers, "maxout": maxout, "cell": cell, "reverse_source": reverse,
            "embedding_dropout": 0.0, "layer_dropout": 0.0, "output_dropout": 0.0}


LOCALITIES = {
    "global": "global",
    "local-m": {"monotonic": {"half_width": 1}},
    "local-p": {"predictive": {"half_width": 2}},
}

add("rnnsearch", rnnsearch_config("none", embedding=5, hidden=7, attention=3, maxout=4))
add("rnnsearch-tie-target", rnnsearch_config("target", embedding=4, hidden=5, attention=6, maxout=4))
add("rnnsearch-tie-all", rnnsearch_config("all", embedding=3, hidden=5, attention=1, maxout=3))
for score in ("dot", "general", "concat", "location"):
    for locality, value in LOCALITIES.items():
        for feeding in (True, False):
            name = f"luong-{score}-{locality}-{'feeding' if feeding else 'at-once'}"
            add(name, luong_config(score, value, feeding, hidden=5 if feeding else 3))
for reading in ("forward", "bidirectional"):
    add(f"luong-{reading}-2-layers",
        luong_config("general", LOCALITIES["global"], True, reading, layers=2, hidden=6))
    add(f"luong-{reading}-3-layers",
        luong_config("concat", LOCALITIES["local-p"], False, reading, layers=3, hidden=4))
add("luong-reversed-2-layers", luong_config("dot", LOCALITIES["global"], True, layers=2))
for tie in ("target", "all"):
    add(f"luong-tie-{tie}", luong_config("general", LOCALITIES["global"], True, tie=tie))
for reverse in (False, True):
    add(f"seq2seq-gru-{'reversed' if reverse else 'forward'}", seq2seq_config("gru", 1, reverse))
    add(f"seq2seq-lstm-{'reversed' if reverse else 'forward'}", seq2seq_config("lstm", 2, reverse))
add("seq2seq-gru-tie-target", seq2seq_config("gru", 1, False, tie="target"))
add("seq2seq-lstm-tie-all", seq2seq_config("lstm", 3, True, tie="all"))

if __name__ == "__main__":  # gnmt_golden.py borrows from here
    golden.save(HERE / "models.safetensors")
