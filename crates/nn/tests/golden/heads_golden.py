"""Makes heads.safetensors: expected outputs and gradients of positions and multi-head attention.

Run in this folder: `python heads_golden.py`. Made with Python 3, torch 2.15.0, keras 3.15.1 (on torch), numpy
2.4.6, safetensors 0.8.0.

Sources. Keras' MultiHeadAttention and GroupQueryAttention. PyTorch's own modules where it has them:
- torch.nn.MultiheadAttention (one matrix, or three with kdim and vdim), with causal and padding masks
- torch.nn.functional.scaled_dot_product_attention(enable_gqa=True): grouped-query and multi-query
- torch.nn.functional.rms_norm, normalize
Re-derived, line by line in their order of operations, from published code:
- rotary, half-split: transformers 4.57, models/llama/modeling_llama.py (`rotate_half`, `apply_rotary_pos_emb`);
  scaling: modeling_rope_utils.py (`_compute_linear_scaling_rope_parameters`, `_compute_llama3_parameters`; the
  base of `ntk` as in `_compute_dynamic_ntk_parameters` at a fixed factor)
- rotary, interleaved: models/gptj/modeling_gptj.py (`rotate_every_two`)
- ALiBi: github.com/ofirpress/attention_with_linear_biases, fairseq/models/transformer.py (`get_slopes`)
- T5 buckets: models/t5/modeling_t5.py (`_relative_position_bucket`, `compute_bias`)
- query-key norm before rotary: models/qwen3/modeling_qwen3.py (`Qwen3Attention.forward`)
Written from the papers: sinusoidal (Vaswani 2017, 3.5), Shaw 2018 (eq. 3 and 4, one pair at a time), talking
heads (Shazeer 2020, the pseudocode of section 4), L2 query-key norm (Henry 2020, eq. 3), gates (Qiu 2025, G1).

Layouts are those of regard-nn: x W with W [inputs, outputs], the columns of a head side by side.
"""

import math
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from torch.nn.functional import normalize, rms_norm, scaled_dot_product_attention, softmax

from golden_file import GoldenFile

golden = GoldenFile()
BATCH, LENGTH, KEYS = 2, 5, 7


def weigh(draw, outputs, name="loss"):
    """A loss that gives every number of the output a weight of its own."""
    return (outputs * draw.constant(name, *outputs.shape)).sum()


# --- positions -------------------------------------------------------------------------------------------


def sinusoidal_case(size, first):
    def compute(draw):
        x = draw("x", BATCH, LENGTH, size)
        table = torch.zeros(LENGTH, size, dtype=draw.dtype)
        for row in range(LENGTH):
            for i in range(size):
                angle = (first + row) / 10000 ** (2 * (i // 2) / size)
                table[row, i] = math.sin(angle) if i % 2 == 0 else math.cos(angle)
        x = x + table
        return weigh(draw, x), {"x": x}

    return compute


for size, first in ((8, 0), (7, 30), (1, 2)):
    golden.case(f"sinusoidal-{size}-{first}", sinusoidal_case(size, first),
                kind="sinusoidal", size=size, first=first)


def inverse_frequencies(size, base, scaling):
    """float64, as rounding of an angle is not what the cases are about."""
    kind, *numbers = scaling
    if kind == "ntk":
        base = base * numbers[0] ** (size / (size - 2))
    inverse = 1.0 / (base ** (torch.arange(0, size, 2, dtype=torch.int64).double() / size))
    if kind == "linear":
        inverse = inverse / numbers[0]
    if kind == "llama3":
        factor, low_freq_factor, high_freq_factor, old_context_len = numbers
        low_freq_wavelen = old_context_len / low_freq_factor
        high_freq_wavelen = old_context_len / high_freq_factor
        wavelen = 2 * math.pi / inverse
        llama = torch.where(wavelen > low_freq_wavelen, inverse / factor, inverse)
        smooth = (old_context_len / wavelen - low_freq_factor) / (high_freq_factor - low_freq_factor)
        smoothed = (1 - smooth) * llama / factor + smooth * llama
        is_medium = ~(wavelen < high_freq_wavelen) * ~(wavelen > low_freq_wavelen)
        inverse = torch.where(is_medium, smoothed, llama)
    return inverse


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


def rotate_every_two(x):
    x1 = x[:, :, :, ::2]
    x2 = x[:, :, :, 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def rotary(x, first, size, layout="half-split", base=10000.0, scaling=("none",)):
    """x [batch, heads, length, d], its first token at position `first`; the first `size` features turn."""
    position = torch.arange(first, first + x.shape[2]).double()
    freqs = torch.outer(position, inverse_frequencies(size, base, scaling))
    turning, rest = x[..., :size], x[..., size:]
    if layout == "half-split":
        emb = torch.cat((freqs, freqs), dim=-1)
        rotated = rotate_half(turning)
    else:
        emb = torch.repeat_interleave(freqs, 2, dim=-1)
        rotated = rotate_every_two(turning)
    cos, sin = emb.cos().to(x.dtype), emb.sin().to(x.dtype)
    return torch.cat((turning * cos + rotated * sin, rest), dim=-1)


def rotary_case(dim, first, **options):
    def compute(draw):
        x = rotary(draw("x", BATCH, 3, LENGTH, dim, scale=2.0), first, **options)
        return weigh(draw, x), {"x": x}

    return compute


for layout in ("half-split", "interleaved"):
    for name, dim, size, first, base, scaling in (
        ("whole", 8, 8, 0, 10000.0, ("none",)),
        ("part", 11, 6, 3, 10000.0, ("none",)),
        ("base", 8, 8, 100, 500000.0, ("none",)),
        ("linear", 8, 8, 40, 10000.0, ("linear", 4.0)),
        ("ntk", 8, 8, 40, 10000.0, ("ntk", 4.0)),
        ("llama3", 16, 16, 1000, 500.0, ("llama3", 8.0, 1.0, 4.0, 1024)),
    ):
        golden.case(f"rotary-{layout}-{name}",
                    rotary_case(dim, first, size=size, layout=layout, base=base, scaling=scaling),
                    kind="rotary", dim=dim, size=size, first=first, layout=layout, base=base,
                    scaling=scaling[0], numbers=list(scaling[1:]))


def get_slopes(n):
    def get_slopes_power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        ratio = start
        return [start * ratio**i for i in range(n)]

    if math.log2(n).is_integer():
        return get_slopes_power_of_2(n)
    closest_power_of_2 = 2 ** math.floor(math.log2(n))
    return (get_slopes_power_of_2(closest_power_of_2)
            + get_slopes(2 * closest_power_of_2)[0::2][: n - closest_power_of_2])


def alibi(heads, queries, keys, dtype):
    """The last query stands at the last key."""
    distance = torch.arange(keys)[None] - torch.arange(keys - queries, keys)[:, None]
    return -torch.tensor(get_slopes(heads), dtype=dtype)[:, None, None] * distance.abs()


def alibi_case(heads):
    def compute(draw):
        scores = draw("scores", 1, heads, 3, KEYS) + alibi(heads, 3, KEYS, draw.dtype)
        return weigh(draw, scores), {"scores": scores}

    return compute


for heads in (1, 2, 6, 8, 12):
    golden.case(f"alibi-{heads}", alibi_case(heads), kind="alibi", heads=heads)


def relative_position_bucket(relative_position, bidirectional, num_buckets, max_distance):
    relative_buckets = 0
    if bidirectional:
        num_buckets //= 2
        relative_buckets += (relative_position > 0).to(torch.long) * num_buckets
        relative_position = torch.abs(relative_position)
    else:
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
    max_exact = num_buckets // 2
    is_small = relative_position < max_exact
    relative_position_if_large = max_exact + (
        torch.log(relative_position.float() / max_exact)
        / math.log(max_distance / max_exact)
        * (num_buckets - max_exact)
    ).to(torch.long)
    relative_position_if_large = torch.min(
        relative_position_if_large, torch.full_like(relative_position_if_large, num_buckets - 1)
    )
    relative_buckets += torch.where(is_small, relative_position, relative_position_if_large)
    return relative_buckets


def t5_bias(draw, name, heads, queries, keys, bidirectional, buckets, maximum):
    """compute_bias of a decoder with a cache: the last query stands at the last key."""
    table = draw(name, buckets, heads)
    distance = torch.arange(keys)[None] - torch.arange(keys - queries, keys)[:, None]
    bucket = relative_position_bucket(distance, bidirectional, buckets, maximum)
    return table[bucket].permute([2, 0, 1]).unsqueeze(0)


def buckets_case(*config):
    def compute(draw):
        bias = t5_bias(draw, "table", 3, 4, 9, *config)
        return weigh(draw, bias), {"bias": bias}

    return compute


REACH = 600
DISTANCES = torch.arange(-REACH, REACH + 1)


def bucket_steps(*config):
    """[first distance, bucket] wherever the bucket changes, so that the file stays small."""
    buckets = relative_position_bucket(DISTANCES, *config).tolist()
    pairs = zip(DISTANCES.tolist(), buckets, [None, *buckets])
    return [[distance, bucket] for distance, bucket, before in pairs if bucket != before]


for config in (
    (True, 32, 128), (False, 32, 128), (True, 8, 20), (False, 7, 64), (False, 2, 5), (True, 4, 3)
):
    bidirectional, buckets, maximum = config
    golden.case(f"buckets-{bidirectional}-{buckets}-{maximum}", buckets_case(*config),
                kind="buckets", bidirectional=bidirectional, buckets=buckets, maximum=maximum, reach=REACH,
                steps=bucket_steps(*config))


def shaw_scores(q, keys, queries, length, reach):
    """q_i · a^K_{clip(j - i)}, one pair at a time; the last query stands at the last key."""
    rows = []
    for i in range(queries):
        position = length - queries + i
        rows.append(torch.stack([
            (q[:, :, i] * keys[max(-reach, min(reach, j - position)) + reach]).sum(-1) for j in range(length)
        ], -1))
    return torch.stack(rows, 2)


def shaw_context(weights, values, reach):
    queries, length = weights.shape[2:]
    rows = []
    for i in range(queries):
        position = length - queries + i
        rows.append(sum(
            weights[:, :, i, j, None] * values[max(-reach, min(reach, j - position)) + reach]
            for j in range(length)
        ))
    return torch.stack(rows, 2)


def relative_case(reach):
    def compute(draw):
        q = draw("query", BATCH, 2, 4, 3)
        weights = draw("weights", BATCH, 2, 4, KEYS)
        scores = shaw_scores(q, draw("keys", 2 * reach + 1, 3), 4, KEYS, reach)
        context = shaw_context(weights, draw("values", 2 * reach + 1, 3), reach)
        return weigh(draw, scores) + weigh(draw, context, "loss.c"), {"scores": scores, "context": context}

    return compute


for reach in (1, 2, 9):
    golden.case(f"relative-{reach}", relative_case(reach), kind="relative", reach=reach)


# --- multi-head attention: PyTorch's module --------------------------------------------------------------


def torch_multi_head(model, heads, source, fused, bias, masked, query_length):
    """nn.MultiheadAttention; `source` None: self-attention. Biases only in one vector: the gradient of a bias
    of the keys alone is 0, as a softmax sees no shift, and what PyTorch gives for it is rounding."""

    def compute(draw):
        x = draw("x", BATCH, query_length, model, scale=1.0)
        y = x if source is None else draw("y", BATCH, KEYS, source, scale=1.0)
        inputs = [model] + [model if source is None else source] * 2
        replaced = {}
        if fused:
            replaced["in_proj_weight"] = draw("projection.Fused.query_key_value.weight", model, 3 * model).T
            if bias:
                replaced["in_proj_bias"] = draw("projection.Fused.query_key_value.bias", 3 * model)
        else:
            names = ("query", "key", "value")
            weights = [draw(f"projection.Separate.{n}.weight", i, model).T for n, i in zip(names, inputs)]
            assert not bias
            if source is None or source == model:
                replaced["in_proj_weight"] = torch.cat(weights)
            else:
                replaced |= {f"{n[0]}_proj_weight": w for n, w in zip(names, weights)}
        replaced["out_proj.weight"] = draw("output.weight", model, model).T
        if bias:
            replaced["out_proj.bias"] = draw("output.bias", model)
        kdim = {} if source in (None, model) else {"kdim": source, "vdim": source}
        module = torch.nn.MultiheadAttention(model, heads, bias=bias, batch_first=True, dtype=draw.dtype, **kdim)
        length = y.shape[1]
        options = {}
        if masked:
            if source is None:
                options["attn_mask"] = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
            options["key_padding_mask"] = torch.arange(length)[None] >= torch.tensor([[length], [length - 2]])
        output, weights = torch.func.functional_call(
            module, replaced, (x, y, y), {"average_attn_weights": False, **options})
        return weigh(draw, output), {"output": output, "weights": weights}

    return compute


for name, model, heads, source, fused, bias, masked, length in (
    ("self", 8, 2, None, False, False, False, LENGTH),
    ("self-fused", 8, 2, None, True, True, False, LENGTH),
    ("self-plain", 6, 3, None, True, False, False, LENGTH),
    ("self-masked", 8, 2, None, True, True, True, LENGTH),
    ("cross", 8, 4, 6, False, False, False, 3),
    ("cross-masked", 8, 2, 6, False, False, True, 3),
    ("cross-fused", 8, 2, 8, True, True, True, 3),
    ("heads-of-1", 7, 7, None, True, False, True, 4),
):
    golden.case(f"torch-{name}", torch_multi_head(model, heads, source, fused, bias, masked, length),
                kind="torch", model=model, heads=heads, source=source, fused=fused, bias=bias, masked=masked,
                length=length)


# --- multi-head attention: Keras -------------------------------------------------------------------------


def keras_case(heads, groups, size, value_size, model, source, causal):
    """keras.layers.MultiHeadAttention, or GroupQueryAttention when heads share. Its kernels are
    [input, heads, size], and that of the output [heads, size, output]."""

    def compute(draw):
        x = draw("x", BATCH, LENGTH, model, scale=1.0)
        y = x if source is None else draw("y", BATCH, KEYS, source, scale=1.0)
        inputs = y.shape[2]
        dtype = {torch.float64: "float64", torch.float32: "float32"}[draw.dtype]
        if groups == heads:
            layer = keras.layers.MultiHeadAttention(heads, size, value_size, use_bias=False, dtype=dtype)
            kernels = [
                draw("projection.Separate.query.weight", model, heads * size).reshape(model, heads, size),
                draw("projection.Separate.key.weight", inputs, heads * size).reshape(inputs, heads, size),
                draw("projection.Separate.value.weight", inputs, heads * value_size)
                .reshape(inputs, heads, value_size),
            ]
        else:
            assert size == value_size
            layer = keras.layers.GroupQueryAttention(size, heads, groups, use_bias=False, dtype=dtype)
            kernels = [
                draw(f"projection.Separate.{name}.weight", width, count * size).reshape(width, count, size)
                for name, width, count in (("query", model, heads), ("key", inputs, groups), ("value", inputs, groups))
            ]
        kernels.append(draw("output.weight", heads * value_size, model).reshape(heads, value_size, model))
        with torch.no_grad():
            layer(x, y)  # makes the variables
        assert [tuple(v.shape) for v in layer.trainable_variables] == [tuple(k.shape) for k in kernels]
        (output, weights), _ = layer.stateless_call(
            kernels, layer.non_trainable_variables, x, y,
            return_attention_scores=True, use_causal_mask=causal)
        return weigh(draw, output), {"output": output, "weights": weights}

    return compute


for name, heads, groups, size, value_size, model, source, causal in (
    ("self", 3, 3, 4, 5, 6, None, False),
    ("causal", 2, 2, 3, 3, 6, None, True),
    ("cross", 2, 2, 4, 3, 5, 7, False),
    ("grouped", 4, 2, 3, 3, 6, None, True),
    ("multi-query", 4, 1, 3, 3, 6, None, False),
):
    golden.case(f"keras-{name}", keras_case(heads, groups, size, value_size, model, source, causal),
                kind="keras", model=model, heads=heads, groups=groups, size=size, value_size=value_size,
                source=source, causal=causal)


# --- multi-head attention: everything else ---------------------------------------------------------------


def heads_of(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def projected(draw, x, heads, groups, size, value_size):
    model = x.shape[2]
    return (
        heads_of(x @ draw("projection.Separate.query.weight", model, heads * size), heads),
        heads_of(x @ draw("projection.Separate.key.weight", model, groups * size), groups),
        heads_of(x @ draw("projection.Separate.value.weight", model, groups * value_size), groups),
    )


def output_of(draw, context, model):
    batch, heads, length, size = context.shape
    joined = context.transpose(1, 2).reshape(batch, length, heads * size)
    return joined @ draw("output.weight", heads * size, model)


def causal_mask(length):
    return torch.tril(torch.ones(length, length, dtype=torch.bool))


def grouped_case(model, heads, groups, size, value_size):
    def compute(draw):
        x = draw("x", BATCH, LENGTH, model, scale=1.0)
        q, k, v = projected(draw, x, heads, groups, size, value_size)
        context = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        output = output_of(draw, context, model)
        return weigh(draw, output), {"output": output}

    return compute


for model, heads, groups, size, value_size in (
    (8, 4, 2, 2, 2), (8, 4, 1, 3, 3), (6, 8, 8, 2, 5), (5, 8, 2, 4, 3),
    (3, 1, 1, 40, 40), (2, 1, 1, 59, 64), (2, 2, 1, 111, 3),
):
    golden.case(f"grouped-{heads}-{groups}-{size}-{value_size}",
                grouped_case(model, heads, groups, size, value_size),
                kind="grouped", model=model, heads=heads, groups=groups, size=size, value_size=value_size)

MODEL, HEADS, SIZE = 8, 4, 6


def variant_case(variant, groups=HEADS):
    """Causal self-attention of 4 heads of 6, with one thing added."""

    def compute(draw):
        x = draw("x", BATCH, LENGTH, MODEL, scale=1.0)
        q, k, v = projected(draw, x, HEADS, groups, SIZE, SIZE)
        scale = SIZE**-0.5
        if variant.startswith("rms"):
            epsilon = 1e-6
            q = rms_norm(q, (SIZE,), draw("query_key_norm.Rms.query", SIZE, scale=2.0), epsilon)
            k = rms_norm(k, (SIZE,), draw("query_key_norm.Rms.key", SIZE, scale=2.0), epsilon)
        if variant == "l2":
            q, k = normalize(q, dim=-1), normalize(k, dim=-1)
            scale = draw("query_key_norm.L2.scale", 1, scale=4.0)
        if "rotary" in variant:
            layout = "interleaved" if "interleaved" in variant else "half-split"
            q, k = (rotary(part, 0, 4, layout) for part in (q, k))
        k, v = (part.repeat_interleave(HEADS // groups, 1) for part in (k, v))
        scores = q @ k.transpose(2, 3) * scale
        if variant == "alibi":
            scores = scores + alibi(HEADS, LENGTH, LENGTH, draw.dtype)
        if variant == "buckets":
            scores = scores + t5_bias(draw, "position.Buckets.table", HEADS, LENGTH, LENGTH, False, 4, 8)
        if variant.startswith("relative"):
            table = draw("position.Relative.keys", 5, SIZE)
            scores = scores + shaw_scores(q, table, LENGTH, LENGTH, 2) * scale
        if variant == "talking":
            scores = torch.einsum("bhqk,hg->bgqk", scores, draw("talking_heads.scores", HEADS, HEADS, scale=1.0))
        weights = softmax(scores.masked_fill(~causal_mask(LENGTH), -torch.inf), -1)
        if variant == "talking":
            weights = torch.einsum("bhqk,hg->bgqk", weights, draw("talking_heads.weights", HEADS, HEADS, scale=1.0))
        context = weights @ v
        if variant == "relative":
            context = context + shaw_context(weights, draw("position.Relative.values", 5, SIZE), 2)
        if variant == "headwise":
            gate = torch.sigmoid(x @ draw("gate.weight.weight", MODEL, HEADS))
            context = context * gate.transpose(1, 2)[..., None]
        if variant == "elementwise":
            gate = torch.sigmoid(x @ draw("gate.weight.weight", MODEL, HEADS * SIZE))
            context = context * heads_of(gate, HEADS)
        output = output_of(draw, context, MODEL)
        return weigh(draw, output), {"output": output, "weights": weights}

    return compute


for variant in ("rms", "rms-rotary", "l2", "rotary", "rotary-interleaved", "alibi", "buckets", "relative",
                "relative-keys", "talking", "headwise", "elementwise"):
    for groups in (HEADS, 2):
        golden.case(f"variant-{variant}-{groups}", variant_case(variant, groups),
                    kind="variant", variant=variant, groups=groups)

golden.save(Path(__file__).with_name("heads.safetensors"))
