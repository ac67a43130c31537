"""How many floating-point operations the products of a training step take: three products of 2 m n k each for Y = X W.

    forward   Y = X W            2 m n k
    backward  dX = dY Wᵀ         2 m n k
              dW = Xᵀ dY         2 m n k

Products only: elementwise work (softmax, gates, dropout, Adam) is not counted, nor pairs that a causal mask hides.
Every side is measured by the same count, even if it computes more.
"""


def training_step(config, batch, tokens):
    """The operations of the model that `config` describes on `batch` sentences of `tokens` positions, source and target."""
    return 3 * 2 * FORWARD[config["kind"]](config, batch, tokens)


def rnnsearch(config, batch, length):
    """Multiply-adds of a forward pass."""
    m, n, a, l = (config[name] for name in ("embedding", "hidden", "attention", "maxout"))
    encoder = 2 * (m * 3 * n + n * 3 * n) + 2 * n * a
    decoder = (m + n + 2 * n) * 3 * n + n * a + (n + m + 2 * n) * 2 * l + l * config["target_vocabulary"]
    pairs = a + 2 * n  # score and context of one target position and one source position
    return batch * (n * n + length * (encoder + decoder + length * pairs))


def luong(config, batch, length):
    """As above."""
    m, n, layers = (config[name] for name in ("embedding", "hidden", "layers"))
    u = n // 2 if config["reading"] == "bidirectional" else n
    encoder = (n // u) * ((m + u) * 4 * u + (layers - 1) * (n + u) * 4 * u) + n * n
    fed = n if config["input_feeding"] else 0
    decoder = (m + fed + n) * 4 * n + (layers - 1) * 2 * n * 4 * n + 2 * n * n + n * config["target_vocabulary"]
    return batch * length * (encoder + decoder + length * 2 * n)


def layer(c, batch, length, pairs):
    """As above, of self-attention that sees `pairs` pairs of positions and a feed-forward network."""
    d = c["d_model"]
    return batch * (length * (4 * d * d + 2 * d * c["feed_forward"]) + 2 * d * pairs)


def transformer(config, batch, length):
    """As above."""
    c = config["layer"]
    d, square, causal = c["d_model"], length * length, length * (length + 1) // 2
    encoder = config["encoder_layers"] * layer(c, batch, length, square)
    cross = batch * (length * 4 * d * d + 2 * d * square)
    decoder = config["decoder_layers"] * (layer(c, batch, length, causal) + cross)
    return encoder + decoder + batch * length * d * config["target_vocabulary"]


def language_model(config, batch, length):
    """As above."""
    c = config["layer"]
    layers = config["layers"] * layer(c, batch, length, length * (length + 1) // 2)
    return layers + batch * length * c["d_model"] * config["vocabulary"]


FORWARD = {
    "rnnsearch": rnnsearch, "luong": luong, "transformer": transformer, "language-model": language_model,
}


def products(config, batch, tokens):
    """The sizes `(rows, inner, columns)` of two products of its forward pass: that inside a layer, and the output layer's."""
    rows, (inner, columns) = batch * tokens, LAYER[config["kind"]](config)
    model = config["layer"]["d_model"] if "layer" in config else config["embedding"]
    return [(rows, inner, columns), (rows, model, config.get("vocabulary", config.get("target_vocabulary")))]


def feed_forward(config):
    """Inner size and columns of a layer's largest product."""
    return config["layer"]["d_model"], config["layer"]["feed_forward"]


LAYER = {
    "rnnsearch": lambda config: (config["embedding"], 3 * config["hidden"]),
    "luong": lambda config: (config["hidden"], 4 * config["hidden"]),
    "transformer": feed_forward, "language-model": feed_forward,
}
