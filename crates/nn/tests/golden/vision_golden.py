"""Makes vision.safetensors: expected outputs and gradients of the modules of regard_nn::vision.

Run in this folder: `python vision_golden.py`. Made with Python 3.11, torch 2.15.0, timm 1.0.31, numpy
2.4.6, safetensors 0.8.0.

Where timm or PyTorch has the module, its own is used:
- timm.layers.SqueezeExcite; timm.layers.cbam.CbamModule and SpatialAttn, the batch normalisation between
  convolution and sigmoid made the identity (the paper's formula has none);
- timm.layers.NonLocalAttn for the unscaled embedded Gaussian, biases 0, batch normalisation the identity;
- torch.nn.MultiheadAttention along each axis for axial attention without distances;
- timm.layers.PatchEmbed.
The rest is written from the papers and their authors' code:
- residual attention: Wang 2017, and Attention-56-deploy.prototxt of github.com/fwang91/residual-attention-network
  (a80220a): pooling 3x3, stride 2, rounded up; interpolation with corners aligned; pre-activation units;
- non-local: Wang 2018, and lib/models/nonlocal_helper.py of github.com/facebookresearch/video-nonlocal-net
  (4b5d2dd): pooling before phi and g, softmax or division by the number of keys;
- axial attention with distances: Wang 2020 (Axial-DeepLab), equation 4, scores divided by sqrt(d);
- regions: Anderson 2018, sections 3.2 and 3.3.
Layouts are those of regard-nn: x W with W [inputs, outputs]; convolutions [outputs, inputs, height, width].
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from timm.layers import NonLocalAttn, PatchEmbed, SqueezeExcite
from timm.layers.cbam import CbamModule, SpatialAttn
from torch.func import functional_call

from golden_file import GoldenFile

golden = GoldenFile()


def weighted(draw, output):
    """The loss of a case: its output weighed with fixed numbers."""
    return (output * draw.constant("loss", *output.shape)).sum()


def window(weight):
    """A matrix x W as a convolution of window 1."""
    return weight.T[:, :, None, None]


# --- gates -----------------------------------------------------------------------------------------------


def excitation(draw, prefix, channels, hidden, bias):
    """The weights of two 1x1 convolutions, as timm names them."""
    weights = {
        "fc1.weight": window(draw(prefix + "excitation.reduce.weight", channels, hidden)),
        "fc2.weight": window(draw(prefix + "excitation.expand.weight", hidden, channels)),
    }
    if bias:
        weights["fc1.bias"] = draw(prefix + "excitation.reduce.bias", hidden)
        weights["fc2.bias"] = draw(prefix + "excitation.expand.bias", channels)
    return weights


def squeeze_excite(shape, reduction, bias):
    def compute(draw):
        x = draw("map", *shape, scale=2.0)
        channels, hidden = shape[1], shape[1] // reduction
        module = SqueezeExcite(channels, rd_channels=hidden, bias=bias, dtype=draw.dtype)
        weights = excitation(draw, "", channels, hidden, bias)
        output = functional_call(module, weights, (x,))
        z = x.mean((2, 3))
        s = F.relu(F.linear(z, weights["fc1.weight"][:, :, 0, 0], weights.get("fc1.bias")))
        s = torch.sigmoid(F.linear(s, weights["fc2.weight"][:, :, 0, 0], weights.get("fc2.bias")))
        return weighted(draw, output), {"output": output, "gate": s[:, :, None, None]}

    return compute


def without_norm(module):
    """timm's spatial attention with its batch normalisation as the identity."""
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.eps = 0.0
    return module.eval()


def spatial_gate(x, weight):
    summary = torch.stack([x.mean(1), x.amax(1)], 1)
    return torch.sigmoid(F.conv2d(summary, weight, padding=weight.shape[-1] // 2))


def spatial(shape, kernel):
    def compute(draw):
        x = draw("map", *shape, scale=2.0)
        weight = draw("convolution.weight", 1, 2, kernel, kernel)
        module = without_norm(SpatialAttn(kernel_size=kernel, dtype=draw.dtype))
        output = functional_call(module, {"conv.conv.weight": weight}, (x,))
        return weighted(draw, output), {"output": output, "gate": spatial_gate(x, weight)}

    return compute


def cbam(shape, reduction, bias, kernel):
    def compute(draw):
        x = draw("map", *shape, scale=2.0)
        channels, hidden = shape[1], shape[1] // reduction
        weights = excitation(draw, "channel.", channels, hidden, bias)
        convolution = draw("spatial.convolution.weight", 1, 2, kernel, kernel)
        module = without_norm(CbamModule(channels, rd_channels=hidden, spatial_kernel_size=kernel,
                                         mlp_bias=bias, dtype=draw.dtype))
        named = {f"channel.{name}": weight for name, weight in weights.items()}
        named["spatial.conv.conv.weight"] = convolution
        output = functional_call(module, named, (x,))

        def mlp(z):
            z = F.relu(F.linear(z, weights["fc1.weight"][:, :, 0, 0], weights.get("fc1.bias")))
            return F.linear(z, weights["fc2.weight"][:, :, 0, 0], weights.get("fc2.bias"))

        channel_gate = torch.sigmoid(mlp(x.mean((2, 3))) + mlp(x.amax((2, 3))))[:, :, None, None]
        gates = {"channel_gate": channel_gate, "spatial_gate": spatial_gate(channel_gate * x, convolution)}
        return weighted(draw, output), {"output": output, **gates}

    return compute


for shape in ([2, 8, 5, 4], [3, 8, 1, 1], [1, 6, 3, 7]):
    name = "x".join(map(str, shape))
    for bias in (False, True):
        golden.case(f"squeeze-excite-{name}-{bias}", squeeze_excite(shape, 2, bias),
                    kind="squeeze-excite", shape=shape, reduction=2, bias=bias)
        golden.case(f"cbam-{name}-{bias}", cbam(shape, 2, bias, 3 if bias else 7),
                    kind="cbam", shape=shape, reduction=2, bias=bias, kernel=3 if bias else 7)
    for kernel in (3, 7):
        golden.case(f"spatial-{name}-{kernel}", spatial(shape, kernel),
                    kind="spatial", shape=shape, kernel=kernel)


# --- residual attention ----------------------------------------------------------------------------------


def pre_activation(draw, prefix, x, outputs, kernel, training):
    """Batch normalisation, ReLU, convolution. Out of training the normalisation uses running statistics."""
    inputs = x.shape[1]
    gamma, beta = draw(prefix + "norm.gamma", inputs, scale=1.0), draw(prefix + "norm.beta", inputs)
    mean = draw(prefix + "norm.running_mean", inputs).detach()
    variance = draw(prefix + "norm.running_var", inputs).detach().abs() + 0.5
    statistics = (None, None) if training else (mean, variance)
    x = F.relu(F.batch_norm(x, *statistics, gamma, beta, training=training, eps=1e-5))
    weight = draw(prefix + "convolution.weight", outputs, inputs, kernel, kernel)
    return F.conv2d(x, weight, padding=kernel // 2)


def residual_unit(draw, prefix, x, training):
    channels = x.shape[1]
    branch = pre_activation(draw, prefix + "reduce.", x, channels // 4, 1, training)
    branch = pre_activation(draw, prefix + "window.", branch, channels // 4, 3, training)
    return x + pre_activation(draw, prefix + "expand.", branch, channels, 1, training)


def units(draw, prefix, x, count, training):
    for i in range(count):
        x = residual_unit(draw, f"{prefix}.{i}.", x, training)
    return x


def pool(x):
    kernel = [min(3, size) for size in x.shape[2:]]
    return F.max_pool2d(x, kernel, stride=2, ceil_mode=True)


def up(x, like):
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)


def activate(x, activation):
    if activation == "mixed":
        return torch.sigmoid(x)
    if activation == "channel":
        return F.normalize(x, dim=1)
    return torch.sigmoid(F.instance_norm(x, eps=1e-5) if x[0, 0].numel() > 1 else torch.zeros_like(x))


def mask_branch(shape, levels, count, activation, training):
    """A scale before a normalisation by the numbers at hand cancels out, so that its gradient is rounding
    alone: in training, and with the other activations than mixed, only outputs and the trunk's gradient are
    compared (finite differences in float64 see to the rest)."""

    def compute(draw):
        trunk = draw("trunk", *shape, scale=2.0)
        leaf = draw
        if training or activation != "mixed":
            def leaf(name, *shape, scale=0.5):
                return draw.constant(name, *shape, scale=scale)
        x = leaf("map", *shape, scale=2.0)
        kept, current = [], x
        for i in range(levels - 1):
            current = units(leaf, f"scales.{i}.down", pool(current), count, training)
            kept.append(current)
        current = units(leaf, "bottom", pool(current), 2 * count, training)
        for i in reversed(range(levels - 1)):
            skip = residual_unit(leaf, f"scales.{i}.skip.", kept[i], training)
            current = units(leaf, f"scales.{i}.up", up(current, kept[i]) + skip, count, training)
        current = up(current, x)
        for i in range(2):
            current = pre_activation(leaf, f"score.{i}.", current, shape[1], 1, training)
        mask = activate(current, activation)
        output = (1 + mask) * trunk
        return weighted(draw, output), {"output": output, "gate": mask}

    return compute


for shape, levels, count, activation, training in (
    ([2, 8, 7, 9], 3, 1, "mixed", False),
    ([2, 8, 7, 9], 3, 1, "mixed", True),
    ([1, 8, 7, 5], 2, 2, "mixed", False),
    ([3, 8, 13, 2], 2, 1, "channel", False),
    ([2, 8, 7, 4], 1, 1, "spatial", False),
    ([2, 8, 1, 1], 1, 1, "mixed", False),
):
    name = "x".join(map(str, shape))
    golden.case(f"mask-{name}-{activation}-{training}", mask_branch(shape, levels, count, activation, training),
                kind="mask", shape=shape, levels=levels, units=count, activation=activation, training=training)


def mask_activation(activation):
    def compute(draw):
        scores = draw("scores", 2, 3, 4, 5, scale=2.0)
        mask = activate(scores, activation)
        return weighted(draw, mask), {"mask": mask}

    return compute


for activation in ("mixed", "channel", "spatial"):
    golden.case(f"activation-{activation}", mask_activation(activation), kind="activation", activation=activation)


# --- non-local -------------------------------------------------------------------------------------------


def pooled(x, size):
    """Maxima over windows of the last two dimensions, cut at the border."""
    planes = x.reshape(x.shape[0], -1, *x.shape[-2:])
    kernel = [min(size, length) for length in x.shape[-2:]]
    planes = F.max_pool2d(planes, kernel, stride=size, ceil_mode=True)
    return planes.reshape(*x.shape[:-2], *planes.shape[-2:])


def non_local(shape, affinity, inner, size, scaled):
    def compute(draw):
        batch, channels = shape[:2]
        x = draw("map", *shape, scale=1.0)
        keys = (x if size == 1 else pooled(x, size)).reshape(batch, channels, -1)
        g = draw("g.weight", channels, inner)
        w_z = draw("w_z.weight", inner, channels)
        theta, phi = x.reshape(batch, channels, -1), keys
        if affinity != "gaussian":
            w_theta, w_phi = draw("theta.weight", channels, inner), draw("phi.weight", channels, inner)
            theta = torch.einsum("ci,bcn->bin", w_theta, theta)
            phi = torch.einsum("ci,bcm->bim", w_phi, phi)
        if affinity == "concatenation":
            w_f = draw("w_f", 2 * inner)
            pairs = torch.cat([
                theta[:, :, :, None].expand(-1, -1, -1, phi.shape[2]),
                phi[:, :, None, :].expand(-1, -1, theta.shape[2], -1),
            ], 1)  # [batch, 2 inner, positions, keys]
            weights = F.relu(torch.einsum("f,bfnm->bnm", w_f, pairs)) / keys.shape[2]
        else:
            weights = torch.einsum("bin,bim->bnm", theta, phi)
            if affinity == "dot":
                weights = weights / keys.shape[2]
            else:
                weights = torch.softmax(weights * (theta.shape[1] ** -0.5 if scaled else 1.0), 2)
        values = torch.einsum("ci,bcm->bim", g, keys)
        y = torch.einsum("bnm,bim->bin", weights, values)
        z = (torch.einsum("ic,bin->bcn", w_z, y) + x.reshape(batch, channels, -1)).reshape(shape)
        if affinity == "embedded-gaussian" and len(shape) == 4 and size == 1 and not scaled:
            module = NonLocalAttn(channels, use_scale=False, rd_channels=inner, dtype=draw.dtype)
            named = {"t.weight": window(w_theta), "p.weight": window(w_phi),
                     "g.weight": window(g), "z.weight": window(w_z)}
            named["norm.weight"] = torch.ones(channels, dtype=draw.dtype)
            z = functional_call(without_norm(module), named, (x,))
        return weighted(draw, z), {"output": z, "weights": weights}

    return compute


for affinity in ("gaussian", "embedded-gaussian", "dot", "concatenation"):
    for shape, inner, size, scaled in (
        ([2, 6, 4, 3], 3, 1, False),
        ([1, 5, 5, 3], 2, 2, True),
        ([1, 4, 2, 3, 3], 4, 2, False),
        ([2, 3, 1, 1], 1, 3, False),
    ):
        name = "x".join(map(str, shape))
        golden.case(f"non-local-{affinity}-{name}", non_local(shape, affinity, inner, size, scaled),
                    kind="non-local", shape=shape, affinity=affinity, inner=inner, pool=size, scaled=scaled)


# --- axial -----------------------------------------------------------------------------------------------


def axis_torch(draw, prefix, lines, heads):
    channels = lines.shape[2]
    q, k, v, o = (draw(f"{prefix}.{name}.weight", channels, channels)
                  for name in ("query", "key", "value", "output"))
    module = torch.nn.MultiheadAttention(channels, heads, bias=False, batch_first=True, dtype=draw.dtype)
    named = {"in_proj_weight": torch.cat([q.T, k.T, v.T]), "out_proj.weight": o.T}
    return functional_call(module, named, (lines, lines, lines), {"average_attn_weights": False})


def axis_distances(draw, prefix, lines, heads, span):
    """Equation 4 of Axial-DeepLab, one pair of positions at a time."""
    count, length, channels = lines.shape
    size = channels // heads
    q, k, v, o = (draw(f"{prefix}.{name}.weight", channels, channels)
                  for name in ("query", "key", "value", "output"))
    r_q, r_k, r_v = (draw(f"{prefix}.distances.{name}", 2 * span - 1, size)
                     for name in ("query", "key", "value"))
    q, k, v = ((lines @ w).reshape(count, length, heads, size) for w in (q, k, v))
    read, weights = [], []
    for at in range(length):
        scores = torch.stack([
            ((q[:, at] * k[:, p]).sum(-1) + q[:, at] @ r_q[p - at + span - 1] + k[:, p] @ r_k[p - at + span - 1])
            for p in range(length)
        ], -1)  # [lines, heads, length]
        weights.append(torch.softmax(scores / size**0.5, -1))
        read.append(sum(weights[-1][..., p, None] * (v[:, p] + r_v[p - at + span - 1]) for p in range(length)))
    read = torch.stack(read, 1).reshape(count, length, channels)
    return read @ o, torch.stack(weights, 2)


def axial(shape, heads, span):
    def compute(draw):
        batch, channels, height, width = shape
        x = draw("map", *shape, scale=2.0)

        def along(prefix, lines):
            if span is None:
                return axis_torch(draw, prefix, lines, heads)
            return axis_distances(draw, prefix, lines, heads, span)

        columns, column_weights = along("height", x.permute(0, 3, 2, 1).reshape(-1, height, channels))
        x = columns.reshape(batch, width, height, channels).permute(0, 2, 1, 3)
        rows, row_weights = along("width", x.reshape(-1, width, channels))
        output = rows.reshape(batch, height, width, channels).permute(0, 3, 1, 2)
        return weighted(draw, output), {
            "output": output,
            "column_weights": column_weights.reshape(batch, width, heads, height, height),
            "row_weights": row_weights.reshape(batch, height, heads, width, width),
        }

    return compute


for shape, heads in (([2, 6, 4, 3], 2), ([1, 4, 1, 5], 1), ([1, 4, 1, 1], 4)):
    for span in (None, 5):
        name = "x".join(map(str, shape))
        golden.case(f"axial-{name}-{span}", axial(shape, heads, span),
                    kind="axial", shape=shape, heads=heads, span=span)


# --- regions ---------------------------------------------------------------------------------------------

FEATURE, STATE, HIDDEN, ANSWERS, REGIONS = 5, 4, 3, 6, 4


def read(scores, features, counts):
    """Weights and what is read, one image at a time, over its own regions."""
    rows, contexts = [], []
    for row, values, count in zip(scores, features, counts):
        weights = torch.softmax(row[:count], 0) if count else row[:0]
        rows.append(F.pad(weights, (0, len(row) - count)))
        contexts.append(weights @ values[:count])
    return torch.stack(contexts), torch.stack(rows)


def caption(counts):
    def compute(draw):
        batch = len(counts)
        v = draw("features", batch, REGIONS, FEATURE, scale=2.0)
        h = draw("state", batch, STATE, scale=2.0)
        w_v, w_h = draw("score.key.weight", FEATURE, HIDDEN), draw("score.query.weight", STATE, HIDDEN)
        w_a = draw("score.vector", HIDDEN, scale=2.0)
        scores = torch.tanh(v @ w_v + (h @ w_h)[:, None]) @ w_a
        context, weights = read(scores, v, counts)
        return weighted(draw, context), {"context": context, "weights": weights}

    return compute


def gated_tanh(draw, prefix, x, outputs):
    inputs = x.shape[-1]
    value = x @ draw(prefix + "value.weight", inputs, outputs) + draw(prefix + "value.bias", outputs)
    gate = x @ draw(prefix + "gate.weight", inputs, outputs) + draw(prefix + "gate.bias", outputs)
    return torch.tanh(value) * torch.sigmoid(gate)


def question(counts):
    def compute(draw):
        batch = len(counts)
        v = draw("features", batch, REGIONS, FEATURE, scale=2.0)
        q = draw("question", batch, STATE, scale=2.0)
        joint = torch.cat([v, q[:, None].expand(-1, REGIONS, -1)], 2)
        scores = gated_tanh(draw, "joint.", joint, HIDDEN) @ draw("vector", HIDDEN, scale=2.0)
        context, weights = read(scores, v, counts)
        return weighted(draw, context), {"context": context, "weights": weights}

    return compute


def answer(draw):
    q, v = draw("question", 3, STATE, scale=2.0), draw("context", 3, FEATURE, scale=2.0)
    h = gated_tanh(draw, "question.", q, HIDDEN) * gated_tanh(draw, "image.", v, HIDDEN)
    logits = gated_tanh(draw, "joint.", h, HIDDEN) @ draw("output.weight", HIDDEN, ANSWERS, scale=2.0)
    p = torch.sigmoid(logits)
    return weighted(draw, p), {"answers": p, "logits": logits}


for counts in ([4, 4], [4, 1, 2], [3, 0]):
    name = "-".join(map(str, counts))
    golden.case(f"caption-{name}", caption(counts), kind="caption", counts=counts)
    golden.case(f"question-{name}", question(counts), kind="question", counts=counts)
golden.case("answer", answer, kind="answer")


# --- patches ---------------------------------------------------------------------------------------------


def patches(image, patch):
    """timm's PatchEmbed, the class token before it, positions added."""

    def compute(draw):
        channels, size = 3, 4
        count = (image[0] // patch[0]) * (image[1] // patch[1])
        x = draw("image", 2, channels, *image, scale=2.0)
        e = draw("projection.weight", channels * patch[0] * patch[1], size)
        named = {"proj.weight": e.T.reshape(size, channels, *patch), "proj.bias": draw("projection.bias", size)}
        module = PatchEmbed(tuple(image), tuple(patch), channels, size, dtype=draw.dtype)
        tokens = functional_call(module, named, (x,))
        tokens = torch.cat([draw("class_token", size).expand(2, 1, size), tokens], 1)
        output = tokens + draw("positions", 1 + count, size)
        return weighted(draw, output), {"tokens": output}

    return compute


for image, patch in (([4, 6], [2, 2]), ([3, 4], [3, 1]), ([1, 1], [1, 1])):
    name = "-".join(f"{h}x{w}" for h, w in (image, patch))
    golden.case(f"patches-{name}", patches(image, patch), kind="patches", image=image, patch=patch)

golden.save(Path(__file__).with_name("vision.safetensors"))
