"""Makes recurrent.safetensors: expected outputs and gradients of recurrent attention.

Run in this folder: `python recurrent_golden.py`. Made with Python 3, torch 2.15, numpy, safetensors.

The cells are PyTorch's (torch.nn.GRUCell, torch.nn.LSTMCell), the rest is written from the papers, one
sentence at a time and without padding:

- LSTMN, alone and with deep fusion: Cheng, Dong, Lapata 2016, equations 5 to 17
- wirings of a decoder: Bahdanau, Cho, Bengio 2014, App. A.2.2; Luong, Pham, Manning 2015, section 3
- coverage and pointer-generator: See, Liu, Manning 2017, sections 2.2 and 2.3
- structured self-attention: Lin et al. 2017, section 2

Layouts are those of regard-nn: x W with W [inputs, outputs]; gates side by side, GRU z | r | h, LSTM
i | f | g | o.
"""

from pathlib import Path

import torch

from golden_file import GoldenFile

golden = GoldenFile()
TIME, BATCH, INPUT, SIZE, ATTENTION = 5, 3, 4, 6, 3
LENGTHS = [5, 2, 4]
SOURCE, POSITIONS = 7, 4
SOURCES = [4, 1, 3]


def put(table, index, value):
    return table.index_put(tuple(torch.tensor(i) for i in index), value)


def additive(draw, prefix, query, key):
    """A function of query [.., query] and keys [positions, key], and of something added in the tanh."""
    w = draw(f"{prefix}.query.weight", query, ATTENTION)
    u, b = draw(f"{prefix}.key.weight", key, ATTENTION), draw(f"{prefix}.key.bias", ATTENTION)
    v = draw(f"{prefix}.vector", ATTENTION, scale=2.0)
    return lambda q, keys, more=0.0: torch.tanh(q @ w + keys @ u + b + more) @ v


# --- LSTMN -----------------------------------------------------------------------------------------------


def lstmn_case(deep):
    def compute(draw):
        n = SIZE
        w, b = draw("cell.input.weight", INPUT, 4 * n), draw("cell.input.bias", 4 * n)
        u = draw("cell.recurrent", n, 4 * n)
        score = additive(draw, "attention", INPUT + n, n)
        x = draw("x", TIME, BATCH, INPUT, scale=2.0)
        if deep:
            inter = additive(draw, "fusion.attention", INPUT + SOURCE, SOURCE)
            gate_x = draw("fusion.input.weight", INPUT, n)
            gate_b, gate_h = draw("fusion.input.bias", n), draw("fusion.recurrent", SOURCE, n)
            gamma = draw("source.hidden", BATCH, POSITIONS, SOURCE)
            alpha = draw("source.cell", BATCH, POSITIONS, n, scale=2.0)
        hidden = torch.zeros(TIME, BATCH, n, dtype=draw.dtype)
        cell = torch.zeros(TIME, BATCH, n, dtype=draw.dtype)
        weights = torch.zeros(BATCH, TIME, TIME, dtype=draw.dtype)
        source_weights = torch.zeros(BATCH, TIME, POSITIONS, dtype=draw.dtype)
        for row, length in enumerate(LENGTHS):
            h_tape, c_tape = [], []
            h_summary = torch.zeros(n, dtype=draw.dtype)
            g_summary = torch.zeros(SOURCE, dtype=draw.dtype)
            for t in range(length):
                x_t = x[t, row]
                c_summary = torch.zeros(n, dtype=draw.dtype)
                if t > 0:
                    a = score(torch.cat([x_t, h_summary]), torch.stack(h_tape))
                    s = torch.softmax(a, 0)
                    weights[row, t, :t] = s.detach()
                    h_summary, c_summary = s @ torch.stack(h_tape), s @ torch.stack(c_tape)
                i, f, g, o = (h_summary @ u + x_t @ w + b).chunk(4)
                c = torch.sigmoid(f) * c_summary + torch.sigmoid(i) * torch.tanh(g)
                if deep:
                    real = SOURCES[row]
                    e = inter(torch.cat([x_t, g_summary]), gamma[row, :real])
                    p = torch.softmax(e, 0)
                    source_weights[row, t, :real] = p.detach()
                    g_summary, a_summary = p @ gamma[row, :real], p @ alpha[row, :real]
                    c = c + torch.sigmoid(g_summary @ gate_h + x_t @ gate_x + gate_b) * a_summary
                h = torch.sigmoid(o) * torch.tanh(c)
                h_tape.append(h)
                c_tape.append(c)
                hidden, cell = put(hidden, (t, row), h), put(cell, (t, row), c)
        loss = (hidden * draw.constant("loss.h", TIME, BATCH, n)).sum()
        loss = loss + (cell * draw.constant("loss.c", TIME, BATCH, n)).sum()
        outputs = {"hidden": hidden, "cell": cell, "weights": weights}
        return loss, {**outputs, "source_weights": source_weights} if deep else outputs

    return compute


golden.case("lstmn", lstmn_case(False), kind="lstmn")
golden.case("lstmn-deep", lstmn_case(True), kind="lstmn-deep")


# --- decoders --------------------------------------------------------------------------------------------


def gru_cell(draw, inputs):
    """torch.nn.GRUCell, its gates r | z | n, its second bias 0."""
    wz, wr, wh = draw("cell.input.weight", inputs, 3 * SIZE).chunk(3, 1)
    bz, br, bh = draw("cell.input.bias", 3 * SIZE).chunk(3)
    uz, ur, uh = draw("cell.recurrent", SIZE, 3 * SIZE).chunk(3, 1)
    module = torch.nn.GRUCell(inputs, SIZE, dtype=draw.dtype)
    weights = {
        "weight_ih": torch.cat([wr, wz, wh], 1).T,
        "weight_hh": torch.cat([ur, uz, uh], 1).T,
        "bias_ih": torch.cat([br, bz, bh]),
        "bias_hh": torch.zeros(3 * SIZE, dtype=draw.dtype),
    }
    return lambda x, h: torch.func.functional_call(module, weights, (x[None], h[None]))[0]


def lstm_cell(draw, inputs):
    """torch.nn.LSTMCell, its second bias 0."""
    module = torch.nn.LSTMCell(inputs, SIZE, dtype=draw.dtype)
    weights = {
        "weight_ih": draw("cell.input.weight", inputs, 4 * SIZE).T,
        "weight_hh": draw("cell.recurrent", SIZE, 4 * SIZE).T,
        "bias_ih": draw("cell.input.bias", 4 * SIZE),
        "bias_hh": torch.zeros(4 * SIZE, dtype=draw.dtype),
    }

    def step(x, state):
        h, c = torch.func.functional_call(module, weights, (x[None], tuple(s[None] for s in state)))
        return h[0], c[0]

    return step


def decoder_score(draw, score):
    if score == "additive":
        return additive(draw, "attention.score.Additive", SIZE, SOURCE)
    # General: the layout [annotation, query] is W transposed.
    w = draw("attention.score.General.key.weight", SOURCE, SIZE)
    return lambda q, keys: keys @ w @ q


def decoder_case(wiring, score, coverage):
    """previous: a GRU; current: an LSTM, with or without input feeding."""

    def compute(draw):
        x = draw("x", TIME, BATCH, INPUT, scale=2.0)
        annotations = draw("annotations", BATCH, POSITIONS, SOURCE, scale=2.0)
        added = {"previous": SOURCE, "current": 0, "feeding": SIZE}[wiring]
        step = (gru_cell if wiring == "previous" else lstm_cell)(draw, INPUT + added)
        match = decoder_score(draw, score)
        combine = None if wiring == "previous" else draw("combine.weight", SOURCE + SIZE, SIZE)
        w_c = draw("coverage.weight", ATTENTION, scale=2.0) if coverage else None
        output = torch.zeros(TIME, BATCH, SIZE, dtype=draw.dtype)
        context = torch.zeros(TIME, BATCH, SOURCE, dtype=draw.dtype)
        weights = torch.zeros(BATCH, TIME, POSITIONS, dtype=draw.dtype)
        losses = torch.zeros(TIME, BATCH, dtype=draw.dtype)
        for row, real in enumerate(SOURCES):
            h = annotations[row, :real]
            zeros = torch.zeros(SIZE, dtype=draw.dtype)
            state = zeros if wiring == "previous" else (zeros, zeros)
            fed, seen = zeros, torch.zeros(real, dtype=draw.dtype)
            for t in range(TIME):
                if wiring != "previous":
                    inputs = torch.cat([x[t, row], fed]) if wiring == "feeding" else x[t, row]
                    state = step(inputs, state)
                query = state if wiring == "previous" else state[0]
                e = match(query, h, seen[:, None] * w_c) if coverage else match(query, h)
                a = torch.softmax(e, 0)
                c = a @ h
                if wiring == "previous":
                    state = step(torch.cat([x[t, row], c]), state)
                    fed = state
                else:
                    fed = torch.tanh(torch.cat([c, state[0]]) @ combine)
                losses = put(losses, (t, row), torch.minimum(a, seen).sum())
                seen = seen + a
                output, context = put(output, (t, row), fed), put(context, (t, row), c)
                weights[row, t, :real] = a.detach()
        loss = (output * draw.constant("loss", TIME, BATCH, SIZE)).sum()
        loss = loss + (context * draw.constant("loss.context", TIME, BATCH, SOURCE)).sum()
        outputs = {"output": output, "context": context, "weights": weights}
        if coverage:
            loss = loss + (losses * draw.constant("loss.coverage", TIME, BATCH)).sum()
            outputs["coverage_loss"] = losses
        return loss, outputs

    return compute


for wiring in ("previous", "current", "feeding"):
    for score, coverage in (("additive", False), ("additive", True), ("general", False)):
        name = f"decoder-{wiring}-{score}{'-coverage' if coverage else ''}"
        golden.case(name, decoder_case(wiring, score, coverage),
                    kind="decoder", wiring=wiring, score=score, coverage=coverage)


# --- pointer-generator -----------------------------------------------------------------------------------

WORDS, EXTENDED = 5, 7
# Words of each source position; 5 and 6 are in the sources alone.
TEXT = [[1, 5, 1, 6], [0, 0, 0, 0], [6, 2, 4, 2]]


def pointer_case(draw):
    context = draw("context", BATCH, SOURCE)
    state, x = draw("state", BATCH, SIZE), draw("x", BATCH, INPUT)
    words = draw("words", BATCH, WORDS, scale=2.0)
    scores = draw("scores", BATCH, POSITIONS, scale=2.0)
    gate = (
        context @ draw("context.weight", SOURCE, 1)
        + state @ draw("state.weight", SIZE, 1)
        + x @ draw("input.weight", INPUT, 1)
        + draw("input.bias", 1)
    )
    generate = torch.sigmoid(gate)[:, 0]
    rows = []
    for row in range(BATCH):
        said, copied = torch.softmax(words[row], 0), torch.softmax(scores[row], 0)
        p = torch.cat([generate[row] * said, torch.zeros(EXTENDED - WORDS, dtype=draw.dtype)])
        for position, word in enumerate(TEXT[row]):
            p = put(p, (word,), p[word] + (1 - generate[row]) * copied[position])
        rows.append(p)
    p = torch.stack(rows)
    loss = (p * draw.constant("loss", BATCH, EXTENDED)).sum()
    return loss, {"generate": generate, "distribution": p}


golden.case("pointer-generator", pointer_case, kind="pointer-generator", text=TEXT)


# --- attentive pooling -----------------------------------------------------------------------------------

HOPS = 3


def pooling_case(draw):
    h = draw("annotations", BATCH, POSITIONS, SOURCE, scale=2.0)
    w1 = draw("hidden.weight", SOURCE, ATTENTION)
    w2 = draw("hops", ATTENTION, HOPS, scale=2.0)
    contexts, weights, penalties = [], [], []
    for row, real in enumerate(SOURCES):
        a = torch.softmax((torch.tanh(h[row, :real] @ w1) @ w2).T, 1)
        contexts.append(a @ h[row, :real])
        padding = torch.zeros(HOPS, POSITIONS - real, dtype=draw.dtype)
        weights.append(torch.cat([a, padding], 1))
        identity = torch.eye(HOPS, dtype=draw.dtype)
        penalties.append(torch.linalg.matrix_norm(a @ a.T - identity, "fro") ** 2)
    context, weights, penalty = (torch.stack(x) for x in (contexts, weights, penalties))
    loss = (context * draw.constant("loss", BATCH, HOPS, SOURCE)).sum()
    loss = loss + (penalty * draw.constant("loss.penalty", BATCH)).sum()
    return loss, {"context": context, "weights": weights, "redundancy": penalty}


golden.case("pooling", pooling_case, kind="pooling")

golden.save(Path(__file__).parent / "recurrent.safetensors")
