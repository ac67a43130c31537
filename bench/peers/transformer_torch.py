"""The PyTorch twins of regard's transformer (Vaswani et al. 2017) and of a causal language model of the same layers.

Written as one would write it well in PyTorch: scaled_dot_product_attention, one product for queries, keys and values
of self-attention and one for keys and values of cross-attention, batch-major throughout, causal masks by `is_causal`.
"""

import torch
from torch import nn
from torch.nn import functional as F

from cells_torch import Tables

# The choices of a layer that these twins have; others are refused.
FIXED = {"position": "none", "window": None}


def split(x, parts, heads):
    """[batch, length, parts * d] -> `parts` tensors [batch, heads, length, d / heads]."""
    return x.unflatten(2, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


class MultiHead(nn.Module):
    """Self-attention, or attention to `memory`."""

    def __init__(self, c, cross=False):
        super().__init__()
        size, bias = c["d_model"], c["bias"]
        self.heads, self.dropout, self.cross = c["heads"], c["dropout"]["attention"], cross
        if cross:
            self.query, self.key_value = nn.Linear(size, size, bias=bias), nn.Linear(size, 2 * size, bias=bias)
        else:
            self.query_key_value = nn.Linear(size, 3 * size, bias=bias)
        self.output = nn.Linear(size, size, bias=bias)

    def forward(self, x, memory=None, causal=False):
        if self.cross:
            (query,) = split(self.query(x), 1, self.heads)
            key, value = split(self.key_value(memory), 2, self.heads)
        else:
            query, key, value = split(self.query_key_value(x), 3, self.heads)
        dropout = self.dropout if self.training else 0.0
        read = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
        return self.output(read.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """W_2 dropout(f(W_1 x)), f ReLU or GELU."""

    def __init__(self, c):
        super().__init__()
        size, bias = c["d_model"], c["bias"]
        self.inner = nn.Linear(size, c["feed_forward"], bias=bias)
        self.outer = nn.Linear(c["feed_forward"], size, bias=bias)
        self.activation, self.dropout = getattr(F, c["activation"]), nn.Dropout(c["dropout"]["activation"])

    def forward(self, x):
        return self.outer(self.dropout(self.activation(self.inner(x))))


class Layer(nn.Module):
    """Self-attention, perhaps cross-attention, feed-forward; each within a residual connection and a norm."""

    def __init__(self, c, cross):
        super().__init__()
        self.pre = c["norm_place"] == "pre"
        self.attention, self.attention_norm = MultiHead(c), norm(c)
        self.cross, self.cross_norm = (MultiHead(c, cross=True), norm(c)) if cross else (None, None)
        self.feed_forward, self.feed_forward_norm = FeedForward(c), norm(c)
        self.dropout = nn.Dropout(c["dropout"]["residual"])

    def residual(self, x, norm, work):
        if self.pre:
            return x + self.dropout(work(norm(x)))
        return norm(x + self.dropout(work(x)))

    def forward(self, x, memory=None, causal=False):
        x = self.residual(x, self.attention_norm, lambda x: self.attention(x, causal=causal))
        if self.cross is not None:
            x = self.residual(x, self.cross_norm, lambda x: self.cross(x, memory))
        return self.residual(x, self.feed_forward_norm, self.feed_forward)


def norm(c):
    """Layer norm."""
    return nn.LayerNorm(c["d_model"], eps=c["norm"]["epsilon"])


class Stack(nn.Module):
    """Layers, and the norm that ends a pre-norm stack."""

    def __init__(self, c, layers, cross):
        super().__init__()
        other = {key: c[key] for key, value in FIXED.items() if c[key] != value}
        if other or c["key_value_heads"] != c["heads"] or c["norm"]["kind"] != "layer" or c["activation"] == "swiglu":
            raise ValueError(f"transformer_torch.py has layer norm, ReLU or GELU, {FIXED} and as many key/value heads; got {c}")
        self.layers = nn.ModuleList(Layer(c, cross) for _ in range(layers))
        self.norm = norm(c) if c["norm_place"] == "pre" else None

    def forward(self, x, memory=None, causal=False):
        for layer in self.layers:
            x = layer(x, memory, causal)
        return x if self.norm is None else self.norm(x)


class Embedded(nn.Module):
    """dropout(sqrt(d) E w_t + PE(t)), sines and cosines side by side."""

    def __init__(self, config, size, longest):
        super().__init__()
        if config["positions"] != {"kind": "sinusoidal"}:
            raise ValueError(f"transformer_torch.py has sinusoidal positions; got {config['positions']}")
        places = torch.arange(longest, dtype=torch.float64)[:, None]
        angles = places * 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        table = torch.stack([angles.sin(), angles.cos()], 2).flatten(1).float()
        self.register_buffer("table", table, persistent=False)
        self.scale, self.dropout = size**0.5, nn.Dropout(config["embedding_dropout"])

    def forward(self, embedded):
        """[batch, length, size]."""
        return self.dropout(torch.add(self.table[: embedded.shape[1]], embedded, alpha=self.scale))


class Transformer(nn.Module):
    """Encoder and decoder."""

    def __init__(self, config, longest):
        super().__init__()
        c = config["layer"]
        size = c["d_model"]
        self.tables = Tables(config["source_vocabulary"], config["target_vocabulary"], size, size, config["tie"])
        self.embedded = Embedded(config, size, longest)
        self.encoder = Stack(c, config["encoder_layers"], cross=False)
        self.decoder = Stack(c, config["decoder_layers"], cross=True)

    def forward(self, source, inputs):
        """source [time, batch], inputs [time, batch], no padding -> logits [time * batch, vocabulary]."""
        memory = self.encoder(self.embedded(self.tables.embed_source(source.T)))
        states = self.decoder(self.embedded(self.tables.target(inputs.T)), memory, causal=True)
        return self.tables.logits(states.transpose(0, 1).flatten(0, 1))

    @staticmethod
    def convert(arrays):
        """regard's weights by the names here: keys and values of cross-attention side by side."""
        own = {}
        for name, array in arrays.items():
            name = name.removeprefix("Transformer.").replace("projection.Fused.", "")
            name = name.replace("_block.norm", "_norm").replace("cross_attention", "cross")
            own[name.replace("projection.Separate.", "")] = array
        for name in [name for name in own if ".cross.key." in name]:
            value = own.pop(name.replace(".key.", ".value."))
            own[name.replace(".key.", ".key_value.")] = torch.cat([own.pop(name), value], value.dim() - 1)
        return own


class LanguageModel(nn.Module):
    """Causal layers that predict the next token."""

    def __init__(self, config, longest):
        super().__init__()
        c = config["layer"]
        size, vocabulary = c["d_model"], config["vocabulary"]
        self.tables = Tables(vocabulary, vocabulary, size, size, "all")
        self.embedded = Embedded(config, size, longest)
        self.stack = Stack(c, config["layers"], cross=False)

    def forward(self, source, inputs):
        """inputs [time, batch], no padding -> logits [time * batch, vocabulary]; no source."""
        states = self.stack(self.embedded(self.tables.target(inputs.T)), causal=True)
        return self.tables.logits(states.transpose(0, 1).flatten(0, 1))

    convert = staticmethod(Transformer.convert)
