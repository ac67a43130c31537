"""Makes transformer.safetensors: expected logits, loss and gradients of Transformers.

Run in this folder: `python transformer_golden.py`. Made with Python 3, torch 2.15.0, numpy 2.4.6, safetensors 0.8.0.

Written from Vaswani et al. 2017, sections 3.1 to 3.5, one sentence at a time, so that no padding is involved, with PyTorch's own
layer_norm, rms_norm, gelu, silu and scaled_dot_product_attention; rotary positions from Su et al. 2021, equation 34 (half-split
pairs as in Llama); relative positions from Shaw et al. 2018, equations 3 and 4; SwiGLU from Shazeer 2020, equation 6.

The loss is PyTorch's cross_entropy with label smoothing 0.1, the mean over all target tokens. Layouts are those of regard: x W with
W [inputs, outputs]; Q | K | V side by side in self-attention.
"""

import math
import sys
from pathlib import Path

import torch
from torch.nn.functional import (
    cross_entropy, gelu, layer_norm, relu, rms_norm, scaled_dot_product_attention, silu,
)

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "nn" / "tests" / "golden"))
from golden_file import GoldenFile  # noqa: E402

golden = GoldenFile()
START, END = 1, 2
SOURCES = [[5, 7, 4, 8], [6], [8, 5, 5]]
TARGETS = [[4, 6], [7, 5, 6, 4], [5]]
SMOOTHING = 0.1


class Model:
    """The weights of one model by their names in regard, and what is done with them."""

    def __init__(self, draw, config):
        self.draw, self.config, self.layer = draw, config, config["layer"]

    def __call__(self, name, *shape, scale=0.5):
        return self.draw("Transformer." + name, *shape, scale=scale)

    def linear(self, name, x, outputs):
        y = x @ self(name + ".weight", x.shape[-1], outputs, scale=1.0)
        return y + self(name + ".bias", outputs) if self.layer["bias"] else y

    def norm(self, name, x):
        size, norm = x.shape[-1], self.layer["norm"]
        weight = self(name + ".weight", size, scale=2.0)
        if norm["kind"] == "rms":
            return rms_norm(x, (size,), weight, norm["epsilon"])
        return layer_norm(x, (size,), weight, self(name + ".bias", size), norm["epsilon"])

    def block(self, name, x, compute):
        name += ".norm"
        if self.layer["norm_place"] == "post":
            return self.norm(name, x + compute(x))
        return x + compute(self.norm(name, x))

    def last_norm(self, name, x):
        return self.norm(name, x) if self.layer["norm_place"] == "pre" else x

    def embed(self, side, ids):
        config, d = self.config, self.layer["model_size"]
        table = "target" if config["tie"] == "all" else side
        x = math.sqrt(d) * self(f"tables.{table}.weight", config[side + "_vocabulary"], d)[ids]
        positions = config["positions"]
        if positions["kind"] == "learned":
            return x + self(f"{side}_positions.table.weight", positions["positions"], d)[: len(ids)]
        if positions["kind"] == "sinusoidal":
            t = torch.arange(len(ids), dtype=torch.float64)[:, None]
            angle = t / 10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
            table = torch.stack([torch.sin(angle), torch.cos(angle)], 2).flatten(1)
            return x + table.to(x.dtype)
        return x

    def logits(self, x):
        config = self.config
        vocabulary, d = config["target_vocabulary"], self.layer["model_size"]
        if config["tie"] == "none":
            y = x @ self("tables.output.weight", d, vocabulary)
            return y + self("tables.output.bias", vocabulary)
        return x @ self("tables.target.weight", vocabulary, d).T + self("tables.output_bias", vocabulary)

    def heads(self, name, q, k, v, seen, own):
        """q, k, v [heads, length, size] -> [length, heads * size]; `own`: positions of the layer act."""
        size, position = q.shape[-1], self.layer["position"]
        group = len(q) // len(k)
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        if own and "rotary" in position:
            q, k = rotate(q), rotate(k)
        if own and "relative" in position:
            reach = position["relative"]["reach"]
            distance = torch.arange(k.shape[1])[None] - torch.arange(q.shape[1])[:, None]
            index = distance.clamp(-reach, reach) + reach
            a_k = self(name + ".position.Relative.keys", 2 * reach + 1, size)[index]
            a_v = self(name + ".position.Relative.values", 2 * reach + 1, size)[index]
            e = (torch.einsum("hqd,hkd->hqk", q, k) + torch.einsum("hqd,qkd->hqk", q, a_k)) / math.sqrt(size)
            alpha = torch.softmax(e.masked_fill(~seen, -math.inf), -1)
            read = torch.einsum("hqk,hkd->hqd", alpha, v) + torch.einsum("hqk,qkd->hqd", alpha, a_v)
        else:
            read = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen)[0]
        return read.transpose(0, 1).flatten(1)

    def split(self, x, heads):
        return x.unflatten(1, (heads, -1)).transpose(0, 1)

    def attention(self, name, x, seen):
        d, h, g = (self.layer[key] for key in ("model_size", "heads", "key_value_heads"))
        columns = [d, d // h * g, d // h * g]
        joint = self.linear(name + ".projection.Fused.query_key_value", x, sum(columns))
        q, k, v = (self.split(part, n) for part, n in zip(joint.split(columns, 1), (h, g, g)))
        return self.linear(name + ".output", self.heads(name, q, k, v, seen, own=True), d)

    def cross(self, name, x, y):
        d, h, g = (self.layer[key] for key in ("model_size", "heads", "key_value_heads"))
        part = lambda of, which, n: self.split(
            self.linear(f"{name}.projection.Separate.{which}", of, d // h * n), n)
        seen = torch.ones(len(x), len(y), dtype=torch.bool)
        read = self.heads(name, part(x, "query", h), part(y, "key", g), part(y, "value", g), seen, own=False)
        return self.linear(name + ".output", read, d)

    def feed_forward(self, name, x):
        f, activation = self.layer["feed_forward"], self.layer["activation"]
        if activation == "swiglu":
            gate, value = self.linear(name + ".inner", x, 2 * f).chunk(2, 1)
            inner = silu(gate) * value
        else:
            inner = {"relu": relu, "gelu": gelu}[activation](self.linear(name + ".inner", x, f))
        return self.linear(name + ".outer", inner, x.shape[1])

    def window(self, length):
        width = self.layer["window"] or length
        t = torch.arange(length)
        return (t[:, None] - t[None]).abs() < width


    def forward(self, source, inputs):
        x = self.embed("source", source)
        for i in range(self.config["encoder_layers"]):
            name = f"encoder.layers.{i}."
            seen = self.window(len(x))
            x = self.block(name + "attention_block", x, lambda x: self.attention(name + "attention", x, seen))
            x = self.block(name + "feed_forward_block", x, lambda x: self.feed_forward(name + "feed_forward", x))
        memory = self.last_norm("encoder.norm", x)
        y = self.embed("target", inputs)
        for i in range(self.config["decoder_layers"]):
            name = f"decoder.layers.{i}."
            seen = self.window(len(y)).tril()
            y = self.block(name + "attention_block", y, lambda y: self.attention(name + "attention", y, seen))
            y = self.block(name + "cross_block", y, lambda y: self.cross(name + "cross_attention", y, memory))
            y = self.block(name + "feed_forward_block", y, lambda y: self.feed_forward(name + "feed_forward", y))
        return self.logits(self.last_norm("decoder.norm", y))


def rotate(x):
    length, size = x.shape[1:]
    angle = torch.arange(length, dtype=torch.float64)[:, None] * 10000 ** (
        -torch.arange(0, size, 2, dtype=torch.float64) / size)
    sine, cosine = torch.sin(angle).to(x.dtype), torch.cos(angle).to(x.dtype)
    a, b = x.chunk(2, 2)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], 2)


def case(config):
    def compute(draw):
        model = Model(draw, config)
        steps = max(map(len, TARGETS)) + 1
        logits = torch.zeros(steps, len(SOURCES), config["target_vocabulary"], dtype=draw.dtype)
        loss = nll = 0.0
        for b, (source, target) in enumerate(zip(SOURCES, TARGETS)):
            source, inputs, outputs = [*source, END], [START, *target], torch.tensor([*target, END])
            found = model.forward(source, inputs)
            loss = loss + cross_entropy(found, outputs, label_smoothing=SMOOTHING, reduction="sum")
            nll = nll + cross_entropy(found, outputs, reduction="sum")
            logits[: len(inputs), b] = found.detach()
        loss = loss / sum(len(target) + 1 for target in TARGETS)
        return loss, {"loss": loss.reshape(1), "nll": nll.reshape(1), "logits": logits}

    return compute


def add(name, tie="none", positions=None, encoder_layers=1, decoder_layers=1, **layer):
    layer = {"model_size": 8, "heads": 2, "key_value_heads": 2, "feed_forward": 6, "activation": "relu",
             "norm": {"kind": "layer", "epsilon": 1e-5}, "norm_place": "pre", "position": "none",
             "window": None, "bias": True,
             "dropout": {"residual": 0.0, "attention": 0.0, "activation": 0.0}, **layer}
    config = {"kind": "transformer", "source_vocabulary": 9, "target_vocabulary": 9 if tie == "all" else 8,
              "encoder_layers": encoder_layers, "decoder_layers": decoder_layers, "layer": layer,
              "positions": positions or {"kind": "sinusoidal"}, "tie": tie, "embedding_dropout": 0.0}
    golden.case(name, case(config), kind="transformer", config=config)


ROTARY = {"rotary": {"size": 4, "base": 10000.0, "layout": "half-split", "scaling": "none"}}
add("transformer-pre", encoder_layers=2)
add("transformer-post", norm_place="post")
add("transformer-tie-target-learned", tie="target", positions={"kind": "learned", "positions": 6})
add("transformer-tie-all-gelu", tie="all", activation="gelu")
add("transformer-grouped-window", key_value_heads=1, heads=4, window=2)
add("transformer-llama", positions={"kind": "none"}, position=ROTARY, activation="swiglu",
    norm={"kind": "rms", "epsilon": 1e-6}, bias=False)
add("transformer-relative", positions={"kind": "none"}, position={"relative": {"reach": 2, "values": True}})

golden.save(HERE / "transformer.safetensors")
