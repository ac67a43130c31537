"""Makes attention.safetensors: expected outputs and gradients of scores, normalisers and whole attentions.

Run in this folder: `python attention_golden.py`. Made with Python 3, torch 2.15.0, numpy 2.4.6, safetensors 0.8.0,
entmax 1.3.

Sources:

- scaled dot with masks, grouped heads and bias: torch.nn.functional.scaled_dot_product_attention; the masks are
  tables written out here from their definitions, place by place, and torch.nn.attention.bias for the two causal
  alignments
- sparsemax, 1.5-entmax: the package `entmax` of their authors (deep-spin)
- cosine: torch.nn.functional.cosine_similarity; L2: torch.cdist; weight norm: torch.nn.functional.normalize
- monotonic: the recursion (equation 8) of Raffel et al. 2017, one number at a time
- NTM addressing: Graves, Wayne, Danihelka 2014, equations 5 to 9, one number at a time; keys that may be seen stand
  in a circle
- soft window: Graves 2013, equations 46 to 51, one number at a time
- sink: softmax over the scores with the sink beside them, its column cut off

Layouts are those of regard-nn: [batch, heads, length, size]; x W with W [inputs, outputs].
"""

from pathlib import Path

import entmax
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import cosine_similarity, normalize, scaled_dot_product_attention, softplus

from golden_file import GoldenFile

golden = GoldenFile()
BATCH, HEADS, QUERIES, KEYS, QUERY, ANNOTATION, SIZE = 2, 2, 3, 5, 4, 6, 3


# --- scores ----------------------------------------------------------------------------------------------


def score_function(draw, score, q, h, prefix=""):
    """Scores of q [batch, heads, queries, size] and h [batch, heads, keys, annotation size]."""
    # Weights carry the name of their variant in regard-nn.
    prefix += {"scaled-general": "ScaledGeneral.", "weight-normed": "WeightNormAdditive.", "cosine-learned": "Cosine.",
               "gaussian-window": "GaussianWindow."}.get(score, score.capitalize() + ".")
    match score:
        case "dot":
            return q @ h.mT
        case "scaled-dot":
            return q @ h.mT / q.shape[-1] ** 0.5
        case "scaled-dot-0.3":
            return q @ h.mT * 0.3
        case "general":
            return q @ (h @ draw(prefix + "key.weight", ANNOTATION, QUERY)).mT
        case "scaled-general":
            w, g = draw(prefix + "key.weight", ANNOTATION, QUERY), draw(prefix + "gain", 1, scale=2.0)
            return g * (q @ (h @ w).mT)
        case "additive":
            return additive(draw, q, h, prefix, draw(prefix + "vector", SIZE, scale=1.0))
        case "weight-normed":
            v, g = draw(prefix + "vector", SIZE, scale=1.0), draw(prefix + "gain", 1, scale=2.0)
            return additive(draw, q, h, prefix, g * normalize(v, dim=0))
        case "cosine":
            return 2.5 * cosine_similarity(q[..., :, None, :], h[..., None, :, :], dim=-1)
        case "cosine-learned":
            w, b = draw(prefix + "sharpening.weight", QUERY, 1), draw(prefix + "sharpening.bias", 1)
            return softplus(q @ w + b) * cosine_similarity(q[..., :, None, :], h[..., None, :, :], dim=-1)
        case "distance":
            return -torch.cdist(q, h) ** 2 / q.shape[-1] ** 0.5
        case "distance-0.2":
            return -torch.cdist(q, h) ** 2 * 0.2
        case "gaussian-window":
            return gaussian_window(draw, q, h.shape[2], prefix)


def additive(draw, q, h, prefix, v):
    w = draw(prefix + "query.weight", QUERY, SIZE)
    u = draw(prefix + "key.weight", ANNOTATION, SIZE)
    b = draw(prefix + "key.bias", SIZE)
    return torch.tanh((q @ w)[..., :, None, :] + (h @ u + b)[..., None, :, :]) @ v


def gaussian_window(draw, q, keys, prefix, components=2):
    w = draw(prefix + "parameters.weight", QUERY, 3 * components)
    b = draw(prefix + "parameters.bias", 3 * components)
    batch, heads, queries, _ = q.shape
    rows = []
    for i in range(batch * heads):
        kappa = torch.zeros(components, dtype=q.dtype)
        for t in range(queries):
            hat = q[i // heads, i % heads, t] @ w + b
            alpha, beta, step = torch.exp(hat).chunk(3)
            kappa = kappa + step
            rows += [sum(alpha[k] * torch.exp(-beta[k] * (kappa[k] - u) ** 2) for k in range(components))
                     for u in range(keys)]
    return torch.stack(rows).reshape(batch, heads, queries, keys)


def annotation_size(score):
    wide = ("general", "scaled-general", "additive", "weight-normed", "gaussian-window")
    return ANNOTATION if score in wide else QUERY


def score_case(score):
    def compute(draw):
        q = draw("query", BATCH, HEADS, QUERIES, QUERY, scale=2.0)
        h = draw("annotations", BATCH, HEADS, KEYS, annotation_size(score), scale=2.0)
        scores = score_function(draw, score, q, h)
        return (scores * draw.constant("loss", *scores.shape)).sum(), {"scores": scores}

    return compute


SCORES = ["dot", "scaled-dot", "scaled-dot-0.3", "general", "scaled-general", "additive", "weight-normed", "cosine",
          "cosine-learned", "distance", "distance-0.2", "gaussian-window"]
for score in SCORES:
    golden.case(f"score-{score}", score_case(score), kind="score", score=score)


# --- masks: tables, written out from their definitions ----------------------------------------------------


def table(batch, queries, keys, sees):
    rows = [[[sees(b, i, j) for j in range(keys)] for i in range(queries)] for b in range(batch)]
    return torch.tensor(rows)[:, None]  # [batch, 1, queries, keys]


LENGTHS = [5, 3]
DOCUMENTS = [[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]]
PREFIXES = [1, 3]


def mask_table(mask, queries, keys):
    """`mask` in words, `batch` 2; the last query stands at the last key."""
    d = keys - queries

    def of(sees):
        return table(BATCH, queries, keys, sees)

    match mask:
        case "all":
            return None
        case "padding":
            return of(lambda b, i, j: j < LENGTHS[b])
        case "causal":
            return causal_lower_right(queries, keys)._materialize()[None, None].expand(BATCH, 1, -1, -1)
        case "causal-upper-left":
            return causal_upper_left(queries, keys)._materialize()[None, None].expand(BATCH, 1, -1, -1)
        case "sliding":  # Mistral: the last 2 keys
            return of(lambda b, i, j: i + d - 1 <= j <= i + d)
        case "window":
            return of(lambda b, i, j: abs(i + d - j) < 2)
        case "dilated":
            return of(lambda b, i, j: abs(i + d - j) in (0, 2))
        case "longformer":
            return of(lambda b, i, j: abs(i + d - j) < 2 or i + d == 1 or j == 1)
        case "local":
            return of(lambda b, i, j: abs(i - j) <= 1)
        case "block":
            return of(lambda b, i, j: (i + d) // 2 == j // 2)
        case "chunked":
            return of(lambda b, i, j: (i + d) // 2 - 1 <= j // 2 <= (i + d) // 2)
        case "block-sparse":  # blocks of 2 queries and 3 keys
            blocks = [[True, False], [True, True]]
            return of(lambda b, i, j: blocks[i // 2][j // 3])
        case "document":
            return of(lambda b, i, j: DOCUMENTS[b][i + d] == DOCUMENTS[b][j])
        case "prefix":
            return of(lambda b, i, j: j < PREFIXES[b] or j <= i + d)
        case "not-longformer":
            return of(lambda b, i, j: not (abs(i + d - j) < 2 or i + d == 0 or j == 0))
        case "nothing":
            return of(lambda b, i, j: False)


MASKS = ["all", "padding", "causal", "causal-upper-left", "sliding", "window", "dilated", "longformer", "local", "block",
         "chunked", "block-sparse", "document", "prefix", "not-longformer", "nothing"]


# --- normalisers -----------------------------------------------------------------------------------------


def each_row(scores, seen, function):
    """`function` of the seen scores of each row; 0 elsewhere."""
    batch, heads, queries, keys = scores.shape
    rows = []
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                places = [j for j in range(keys) if seen is None or seen[b, 0, i, j]]
                row = torch.zeros(keys, dtype=scores.dtype)
                if places:
                    row = row.index_put((torch.tensor(places),), function(scores[b, h, i, places], h))
                rows.append(row)
    return torch.stack(rows).reshape(scores.shape)


def with_sink(sink):
    return lambda s, h: torch.softmax(torch.cat([s, sink(h).reshape(1)]), 0)[:-1]


def monotonic(scores, seen):
    batch, heads, queries, keys = scores.shape
    rows = []
    for b in range(batch):
        for h in range(heads):
            before = [scores.new_tensor(float(j == 0)) for j in range(keys)]
            for i in range(queries):
                p = [torch.sigmoid(scores[b, h, i, j]) * float(seen is None or seen[b, 0, i, j]) for j in range(keys)]
                alpha, q = [], None
                for j in range(keys):
                    q = before[j] if q is None else (1 - p[j - 1]) * q + before[j]
                    alpha.append(p[j] * q)
                rows.append(torch.stack(alpha))
                before = alpha
    return torch.stack(rows).reshape(scores.shape)


def addressing(draw, scores, seen, query, prefix):
    batch, heads, queries, keys = scores.shape
    parts = {name: (draw(f"{prefix}{name}.weight", QUERY, size), draw(f"{prefix}{name}.bias", size))
             for name, size in (("gate", 1), ("shift", 3), ("sharpening", 1))}
    content = each_row(scores, seen, lambda s, h: torch.softmax(s, 0))
    rows = []
    for b in range(batch):
        for h in range(heads):
            circles = [[j for j in range(keys) if seen is None or seen[b, 0, i, j]] for i in range(queries)]
            before = torch.eye(keys, dtype=scores.dtype)[circles[0][0] if circles[0] else 0]
            for i, circle in enumerate(circles):
                emitted = {name: query[b, h, i] @ w + bias for name, (w, bias) in parts.items()}
                g = torch.sigmoid(emitted["gate"])
                s = torch.softmax(emitted["shift"], 0)
                gamma = 1 + softplus(emitted["sharpening"])
                mixed = g * content[b, h, i] + (1 - g) * before
                # The keys that may be seen stand in a circle.
                moved = [0 * mixed[0]] * keys
                for rank, j in enumerate(circle):
                    moved[j] = sum(s[r + 1] * mixed[circle[(rank - r) % len(circle)]] for r in (-1, 0, 1))
                moved = torch.stack(moved)
                total = (moved ** gamma).sum()
                before = moved ** gamma / total if total > 0 else moved
                rows.append(before)
    return torch.stack(rows).reshape(scores.shape)


def normaliser(draw, name, scores, seen, query, prefix=""):
    match name:
        case "softmax":
            return each_row(scores, seen, lambda s, h: torch.softmax(s, 0))
        case "sink":
            sink = draw(prefix + "Sink.logits", scores.shape[1], scale=1.0)
            return each_row(scores, seen, with_sink(lambda h: sink[h]))
        case "sink-0.5":
            return each_row(scores, seen, with_sink(lambda h: scores.new_tensor(0.5)))
        case "sparsemax":
            return each_row(scores, seen, lambda s, h: entmax.sparsemax(s, dim=0))
        case "entmax15":
            return each_row(scores, seen, lambda s, h: entmax.entmax15(s, dim=0))
        case "sigmoid":
            return each_row(scores, seen, lambda s, h: 1 / (1 + len(s) * torch.exp(-s)))
        case "sigmoid-0.3":
            return each_row(scores, seen, lambda s, h: torch.sigmoid(s + 0.3))
        case "hardmax":
            return each_row(scores, seen, lambda s, h: (s == s.max()).to(s.dtype) + 0 * s)
        case "monotonic-recursive" | "monotonic-parallel":
            return monotonic(scores, seen)
        case "addressing":
            return addressing(draw, scores, seen, query, prefix + "Addressing.")
        case "identity":
            return each_row(scores, seen, lambda s, h: s)


def normaliser_case(name, mask):
    def compute(draw):
        query = draw("query", BATCH, HEADS, QUERIES, QUERY) if name == "addressing" else None
        scores = draw("scores", BATCH, HEADS, QUERIES, KEYS, scale=2.0)
        weights = normaliser(draw, name, scores, mask_table(mask, QUERIES, KEYS), query)
        loss = (weights * draw.constant("loss", *weights.shape)).sum()
        return loss + 0 * scores.sum(), {"weights": weights}

    return compute


NORMALISERS = ["softmax", "sink", "sink-0.5", "sparsemax", "entmax15", "sigmoid", "sigmoid-0.3", "hardmax",
               "monotonic-recursive", "monotonic-parallel", "addressing", "identity"]
for name in NORMALISERS:
    for mask in ("all", "padding", "causal", "nothing"):
        golden.case(f"normalize-{name}-{mask}", normaliser_case(name, mask), kind="normalize", normalize=name, mask=mask)


# --- whole attentions ------------------------------------------------------------------------------------


def attention_case(mask, queries, key_heads, bias):
    """scaled_dot_product_attention; a row that sees nothing is 0 by our definition, as in PyTorch since 2.5."""

    def compute(draw):
        q = draw("query", BATCH, 4, queries, QUERY, scale=2.0)
        k = draw("key", BATCH, key_heads, KEYS, QUERY, scale=2.0)
        v = draw("value", BATCH, key_heads, KEYS, SIZE, scale=2.0)
        seen = mask_table(mask, queries, KEYS)
        added = None if seen is None else torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~seen, -torch.inf)
        if bias:
            b = draw("bias", 1, 4, queries, KEYS, scale=2.0)
            added = b if added is None else b + added
        if seen is not None:
            # scaled_dot_product_attention has NaN gradients for empty rows, so they are computed with all keys
            # seen and left out.
            empty = ~seen.any(-1, keepdim=True)
            added = added.masked_fill(empty, 0.0)
        context = scaled_dot_product_attention(q, k, v, attn_mask=added, enable_gqa=True)
        if seen is not None:
            context = context.masked_fill(empty, 0.0)
        return (context * draw.constant("loss", *context.shape)).sum(), {"context": context}

    return compute


for mask in MASKS:
    for queries in (3, 5):
        if mask == "block-sparse" and queries == 5:
            continue
        for key_heads, bias in ((4, False), (2, True), (1, False)) if mask in ("all", "causal") else ((2, True),):
            golden.case(f"attention-{mask}-{queries}-{key_heads}", attention_case(mask, queries, key_heads, bias),
                        kind="attention", mask=mask, queries=queries, key_heads=key_heads, bias=bias)


def combination_case(score, name, mask, softcap):
    """Any score with any normaliser, by the functions above."""

    def compute(draw):
        q = draw("query", BATCH, HEADS, QUERIES, QUERY, scale=1.0)
        h = draw("key", BATCH, HEADS, KEYS, annotation_size(score), scale=1.0)
        v = draw("value", BATCH, HEADS, KEYS, SIZE, scale=2.0)
        scores = score_function(draw, score, q, h, "score.")
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        weights = normaliser(draw, name, scores, mask_table(mask, QUERIES, KEYS), q, "normalize.")
        context = weights @ v
        loss = (context * draw.constant("loss", *context.shape)).sum()
        return loss, {"context": context, "weights": weights}

    return compute


for score, name, mask, softcap in (
    ("additive", "softmax", "padding", 0), ("weight-normed", "sparsemax", "causal", 0), ("general", "entmax15", "window", 0),
    ("cosine-learned", "addressing", "all", 0), ("gaussian-window", "identity", "padding", 0),
    ("distance", "softmax", "chunked", 0.75), ("scaled-dot", "sink", "sliding", 1.5), ("dot", "sigmoid", "document", 2.0),
    ("scaled-general", "monotonic-parallel", "all", 0), ("additive", "monotonic-recursive", "padding", 0),
):
    golden.case(f"combination-{score}-{name}", combination_case(score, name, mask, softcap), kind="combination",
                score=score, normalize=name, mask=mask, softcap=softcap)

golden.save(Path(__file__).with_name("attention.safetensors"))
