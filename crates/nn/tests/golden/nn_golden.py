"""Makes nn.safetensors: expected outputs and gradients of the modules of regard-nn.

Run in this folder: `python nn_golden.py`. Made with Python 3, torch 2.15.0, numpy 2.4.6, safetensors 0.8.0.

Where PyTorch has the module, its own is used (torch.nn.GRU, torch.nn.LSTM, packed sequences,
torch.nn.functional.cross_entropy). The rest is written from the papers:

- GRU: Bahdanau, Cho, Bengio 2014, App. A.1; with context and the reset after the product: Cho et al. 2014,
  App. A.1.2
- additive score: Bahdanau 2014, App. A.1.2; dot, general, location, local-m, local-p: Luong, Pham,
  Manning 2015, sections 3.1 and 3.2

Layouts are those of regard-nn: x W with W [inputs, outputs]; gates side by side, GRU z | r | h, LSTM
i | f | g | o.
"""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from golden_file import GoldenFile

golden = GoldenFile()
TIME, BATCH, INPUT, SIZE = 4, 3, 5, 7
LENGTHS = [4, 2, 3]


def keep(lengths, time, dtype):
    """[time, batch], 1 at real steps."""
    return torch.tensor([[float(t < n) for n in lengths] for t in range(time)], dtype=dtype)


def reverse(x, lengths):
    """Each sentence of x [time, batch, ..] read from its last real step; padding stays behind."""
    columns = [torch.cat([x[:n, b].flip(0), x[n:, b]]) for b, n in enumerate(lengths)]
    return torch.stack(columns, 1)


# --- GRU -------------------------------------------------------------------------------------------------


def gru_parameters(draw, size=SIZE, inputs=INPUT):
    w = draw("input.weight", inputs, 3 * size)
    b = draw("input.bias", 3 * size)
    u = draw("recurrent", size, 3 * size)
    return [part.chunk(3, -1) for part in (w, b, u)]


def bahdanau_gru(direction):
    """h' = (1 - z) h + z tanh(W x + U [r h]), one sentence at a time, without padding."""

    def compute(draw):
        (wz, wr, wh), (bz, br, bh), (uz, ur, uh) = gru_parameters(draw)
        x, h0 = draw("x", TIME, BATCH, INPUT, scale=2.0), draw("h", BATCH, SIZE)
        states = torch.zeros(TIME, BATCH, SIZE, dtype=draw.dtype)
        for b, length in enumerate(LENGTHS):
            h = h0[b]
            steps = range(length) if direction == "forward" else reversed(range(length))
            for t in steps:
                z = torch.sigmoid(x[t, b] @ wz + bz + h @ uz)
                r = torch.sigmoid(x[t, b] @ wr + br + h @ ur)
                candidate = torch.tanh(x[t, b] @ wh + bh + (r * h) @ uh)
                h = (1 - z) * h + z * candidate
                states = states.index_put((torch.tensor(t), torch.tensor(b)), h)
        return (states * draw.constant("loss", TIME, BATCH, SIZE)).sum(), {"states": states}

    return compute


def torch_gru(direction):
    """torch.nn.GRU over a packed sequence; its gates stand r | z | n, and it has a second bias, here 0."""

    def compute(draw):
        (wz, wr, wh), (bz, br, bh), (uz, ur, uh) = gru_parameters(draw)
        x, h0 = draw("x", TIME, BATCH, INPUT, scale=2.0), draw("h", BATCH, SIZE)
        weights = [
            torch.cat([wr, wz, wh], 1).T,
            torch.cat([ur, uz, uh], 1).T,
            torch.cat([br, bz, bh]),
            torch.zeros(3 * SIZE, dtype=draw.dtype),
        ]
        backward = direction == "backward"
        module = torch.nn.GRU(INPUT, SIZE, bidirectional=backward, dtype=draw.dtype)
        names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
        replaced = {name: weight for name, weight in zip(names, weights)}
        start = h0[None]
        if backward:
            # The other direction runs too, on the module's own weights, and is not looked at.
            replaced = {f"{name}_reverse": weight for name, weight in replaced.items()}
            start = torch.stack([torch.zeros_like(h0), h0])
        packed = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
        output, _ = torch.func.functional_call(module, replaced, (packed, start))
        states, _ = pad_packed_sequence(output, total_length=TIME)
        states = states[..., -SIZE:]
        return (states * draw.constant("loss", TIME, BATCH, SIZE)).sum(), {"states": states}

    return compute


def gru_with_context(reset):
    """Three steps, each with its own context C c: z and r see it; the candidate sees it outside
    (Bahdanau) or inside (Cho's decoder) the reset. Bahdanau's z weighs the new state, Cho's the old."""

    def compute(draw):
        (wz, wr, wh), (bz, br, bh), (uz, ur, uh) = gru_parameters(draw)
        x, h = draw("x", 3, BATCH, INPUT, scale=2.0), draw("h", BATCH, SIZE)
        contexts = draw("context", 3, BATCH, 3 * SIZE)
        states = []
        for t in range(3):
            cz, cr, ch = contexts[t].chunk(3, -1)
            z = torch.sigmoid(x[t] @ wz + bz + h @ uz + cz)
            r = torch.sigmoid(x[t] @ wr + br + h @ ur + cr)
            if reset == "before-product":
                h = (1 - z) * h + z * torch.tanh(x[t] @ wh + bh + (r * h) @ uh + ch)
            else:
                h = z * h + (1 - z) * torch.tanh(x[t] @ wh + bh + r * (h @ uh + ch))
            states.append(h)
        states = torch.stack(states)
        return (states * draw.constant("loss", 3, BATCH, SIZE)).sum(), {"states": states}

    return compute


for direction in ("forward", "backward"):
    golden.case(f"gru-before-{direction}", bahdanau_gru(direction),
                kind="gru", reset="before-product", direction=direction)
    golden.case(f"gru-after-{direction}", torch_gru(direction),
                kind="gru", reset="after-product", direction=direction)
for reset in ("before-product", "after-product"):
    golden.case(f"gru-context-{reset}", gru_with_context(reset), kind="gru-context", reset=reset)


# --- LSTM ------------------------------------------------------------------------------------------------


def torch_lstm(layers, direction):
    """torch.nn.LSTM over a packed sequence, its second bias 0. A backward stack reads the sentences
    reversed, each from its own end."""

    def compute(draw):
        x = draw("x", TIME, BATCH, INPUT, scale=2.0)
        h0 = torch.stack([draw(f"h.{layer}", BATCH, SIZE) for layer in range(layers)])
        c0 = torch.stack([draw(f"c.{layer}", BATCH, SIZE) for layer in range(layers)])
        replaced = {}
        for layer in range(layers):
            inputs = INPUT if layer == 0 else SIZE
            prefix = f"layers.{layer}."
            replaced[f"weight_ih_l{layer}"] = draw(prefix + "input.weight", inputs, 4 * SIZE).T
            replaced[f"weight_hh_l{layer}"] = draw(prefix + "recurrent", SIZE, 4 * SIZE).T
            replaced[f"bias_ih_l{layer}"] = draw(prefix + "input.bias", 4 * SIZE)
            replaced[f"bias_hh_l{layer}"] = torch.zeros(4 * SIZE, dtype=draw.dtype)
        module = torch.nn.LSTM(INPUT, SIZE, num_layers=layers, dtype=draw.dtype)
        read = x if direction == "forward" else reverse(x, LENGTHS)
        packed = pack_padded_sequence(read, LENGTHS, enforce_sorted=False)
        output, (h, c) = torch.func.functional_call(module, replaced, (packed, (h0, c0)))
        states, _ = pad_packed_sequence(output, total_length=TIME)
        if direction == "backward":
            states = reverse(states, LENGTHS)
        loss = (
            (states * draw.constant("loss", TIME, BATCH, SIZE)).sum()
            + (h * draw.constant("loss.h", layers, BATCH, SIZE)).sum()
            + (c * draw.constant("loss.c", layers, BATCH, SIZE)).sum()
        )
        return loss, {"states": states, "hidden": h, "cell": c}

    return compute


for layers in (1, 3):
    for direction in ("forward", "backward"):
        golden.case(f"lstm-{layers}-{direction}", torch_lstm(layers, direction),
                    kind="lstm", layers=layers, direction=direction)


# --- scores and attention --------------------------------------------------------------------------------

QUERIES, KEYS, QUERY, ANNOTATION, ATTENTION = 4, 6, 5, 7, 3
SOURCES = [6, 3, 1]
FIRST_STEP = 1


def score_function(draw, score, q, h, prefix=""):
    """score(s, h) for queries q [batch, queries, QUERY] and annotations h [batch, keys, ..]."""
    prefix += score.split("-")[0].title() + "."  # the variant of the enum Score
    if score == "dot":
        return torch.einsum("bqd,bkd->bqk", q, h)
    if score == "general":
        # W h: the layout [annotation, query] is W transposed.
        w = draw(prefix + "key.weight", ANNOTATION, QUERY).T
        return torch.einsum("bqd,de,bke->bqk", q, w, h)
    if score == "additive":
        w = draw(prefix + "query.weight", QUERY, ATTENTION)
        u, bias = draw(prefix + "key.weight", ANNOTATION, ATTENTION), draw(prefix + "key.bias", ATTENTION)
        v = draw(prefix + "vector", ATTENTION, scale=2.0)
        return torch.tanh((q @ w)[:, :, None] + (h @ u + bias)[:, None]) @ v
    # location: W s has one number for each of a fixed number of positions; the rest score 0.
    positions = {"location-short": 4, "location-long": 9}[score]
    w = draw(prefix + "weight.weight", QUERY, positions, scale=1.0)
    scores = q @ w
    if positions >= KEYS:
        return scores[..., :KEYS]
    return torch.cat([scores, torch.zeros(*scores.shape[:2], KEYS - positions, dtype=draw.dtype)], 2)


def annotation_size(score):
    return QUERY if score == "dot" else ANNOTATION


def score_case(score):
    def compute(draw):
        q = draw("query", BATCH, QUERIES, QUERY, scale=2.0)
        h = draw("annotations", BATCH, KEYS, annotation_size(score), scale=2.0)
        scores = score_function(draw, score, q, h)
        return (scores * draw.constant("loss", BATCH, QUERIES, KEYS)).sum(), {"scores": scores}

    return compute


def attention_case(score, locality, d):
    """One sentence and one query at a time, over the positions that may be seen."""

    def compute(draw):
        size = annotation_size(score)
        q = draw("query", BATCH, QUERIES, QUERY, scale=2.0)
        h = draw("annotations", BATCH, KEYS, size, scale=2.0)
        scores = score_function(draw, score, q, h, "score.")
        contexts, weights = [], []
        for b, length in enumerate(SOURCES):
            for t in range(QUERIES):
                centre, seen = None, list(range(length))
                if score == "location-short":
                    seen = [s for s in seen if s < 4]  # words beyond the known positions are ignored
                if locality == "monotonic":
                    seen = [s for s in seen if abs(s - (FIRST_STEP + t)) <= d]
                if locality == "predictive":
                    w = draw("predictor.hidden.weight", QUERY, QUERY)
                    v = draw("predictor.vector", QUERY, scale=2.0)
                    centre = length * torch.sigmoid(v @ torch.tanh(q[b, t] @ w))
                    assert all(abs(abs(s - centre.item()) - d) > 1e-3 for s in seen), "near an edge"
                    seen = [s for s in seen if abs(s - centre.item()) <= d]
                row = torch.zeros(KEYS, dtype=draw.dtype)
                if seen:
                    alpha = torch.softmax(scores[b, t, seen], 0)
                    if centre is not None:
                        distance = torch.tensor(seen, dtype=draw.dtype) - centre
                        alpha = alpha * torch.exp(-(distance**2) / (2 * (d / 2) ** 2))
                    row = row.index_put((torch.tensor(seen),), alpha)
                weights.append(row)
                contexts.append(row @ h[b])
        contexts = torch.stack(contexts).reshape(BATCH, QUERIES, size)
        weights = torch.stack(weights).reshape(BATCH, QUERIES, KEYS)
        loss = (contexts * draw.constant("loss", BATCH, QUERIES, size)).sum()
        return loss, {"context": contexts, "weights": weights}

    return compute


SCORES = ("dot", "general", "additive", "location-short", "location-long")
for score in SCORES:
    golden.case(f"score-{score}", score_case(score), kind="score", score=score)
    for locality, d in (("global", 0), ("monotonic", 1), ("predictive", 2)):
        golden.case(f"attention-{score}-{locality}", attention_case(score, locality, d),
                    kind="attention", score=score, locality=locality, half_width=d)


# --- cross-entropy ---------------------------------------------------------------------------------------


def cross_entropy_case(smoothing, mean):
    def compute(draw):
        logits = draw("logits", 7, 11, scale=8.0)
        targets = torch.tensor(TARGETS)
        loss = cross_entropy(logits, targets, ignore_index=0, label_smoothing=smoothing,
                             reduction="mean" if mean else "sum")
        nll = cross_entropy(logits, targets, ignore_index=0, reduction="sum")
        return loss, {"loss": loss.reshape(1), "nll": nll.reshape(1)}

    return compute


TARGETS = [3, 10, 0, 1, 5, 0, 2]
for smoothing in (0.0, 0.1, 0.4):
    for mean in (False, True):
        name = f"cross-entropy-{smoothing}-{'mean' if mean else 'sum'}"
        golden.case(name, cross_entropy_case(smoothing, mean),
                    kind="cross-entropy", smoothing=smoothing, mean=mean, targets=TARGETS)

golden.save(Path(__file__).with_name("nn.safetensors"))
