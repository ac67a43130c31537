"""Golden numbers of the networks that read images: class scores, loss and gradients, in PyTorch.

Run in this folder: `python images_golden.py`, which writes images.safetensors. It needs timm 1.0.31, too.

Residual networks as He et al. 2015 and torchvision write them (strides in the 3x3 convolution of a bottleneck, projections where the
shape changes), with the gates of Hu et al. 2017 and Woo et al. 2018 before the sum and the block of Wang et al. 2018 before the last
block of the stage before the last, or that of Wang et al. 2020 along columns and rows; the residual attention network of Wang et al.
2017; the vision Transformer of Dosovitskiy et al. 2020 as timm writes it, also with the distillation token of Touvron et al. 2020,
written here with other positions, and with the convolutions of Hassani et al. 2021 before it; captioners of
Xu et al. 2015 and Anderson et al. 2018 over the cells of a small residual network, teacher-forced. Names and layouts
of the weights are those of the Rust side: linear layers `[inputs, outputs]`, convolutions `[outputs, inputs, height, width]`.

In many deep networks with random weights some gradient is what large terms leave of each other, with few right digits in float32. A
number at the end of a case's name draws other weights: those of a network without such a gradient, found by trying.
"""

import pathlib
import sys

import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch.func import functional_call
from torch.nn import functional as F

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../../nn/tests/golden"))
from golden_file import GoldenFile  # noqa: E402

CLASSES = 5
DEPTHS = {20: ([3] * 3, 16, 1), 32: ([5] * 3, 16, 1), 56: ([9] * 3, 16, 1), 18: ([2] * 4, 64, 1), 34: ([3, 4, 6, 3], 64, 1),
          50: ([3, 4, 6, 3], 64, 4)}


class Net:
    def __init__(self, draw, training, scale=0.5):
        self.draw, self.training, self.scale = draw, training, scale

    def conv(self, name, x, outputs, kernel, stride=1):
        w = self.draw(name + ".weight", outputs, x.shape[1], kernel, kernel, scale=self.scale)
        return F.conv2d(x, w, stride=stride, padding=kernel // 2)

    def norm(self, name, x):
        c = x.shape[1]
        gamma, beta = self.draw(name + ".gamma", c, scale=1.0), self.draw(name + ".beta", c)
        mean, variance = self.draw(name + ".running_mean", c), self.draw(name + ".running_var", c)
        if self.training:
            return F.batch_norm(x, None, None, gamma, beta, True, 0.0, 1e-5)
        return F.batch_norm(x, mean.detach(), variance.detach().abs() + 0.5, gamma, beta, False, 0.0, 1e-5)

    def linear(self, name, x, outputs, bias=True):
        y = x @ self.draw(name + ".weight", x.shape[-1], outputs)
        return y + self.draw(name + ".bias", outputs) if bias else y

    def normed(self, name, x, outputs, kernel, stride=1):
        return self.norm(name + ".norm", self.conv(name + ".conv", x, outputs, kernel, stride))

    def excitation(self, name, x, reduction):
        c = x.shape[1]
        return self.linear(name + ".expand", F.relu(self.linear(name + ".reduce", x, c // reduction, False)), c, False)

    def spatial(self, name, x):
        summary = torch.stack([x.mean(1), x.amax(1)], 1)
        w = self.draw(name + ".convolution.weight", 1, 2, 7, 7)
        return x * torch.sigmoid(F.conv2d(summary, w, padding=3))

    def gate(self, name, x, attention):
        if attention == "se":
            name += ".SqueezeExcite.excitation"
            return x * torch.sigmoid(self.excitation(name, x.mean((2, 3)), 2))[:, :, None, None]
        if attention == "spatial":
            return self.spatial(name + ".Spatial", x)
        if attention == "cbam":
            of = lambda summary: self.excitation(name + ".Cbam.channel.excitation", summary, 2)
            x = x * torch.sigmoid(of(x.mean((2, 3))) + of(x.amax((2, 3))))[:, :, None, None]
            return self.spatial(name + ".Cbam.spatial", x)
        return x

    def along(self, name, lines, span):
        """Two heads on each of `lines [.., length, channels]`, with vectors for distances: equation 4 of Wang et al. 2020."""
        length, c = lines.shape[-2:]
        q, k, v = (self.linear(f"{name}.{part}", lines, c, False).unflatten(-1, (2, -1)).transpose(-3, -2)
                   for part in ("query", "key", "value"))
        distances = torch.arange(length) - torch.arange(length)[:, None] + span - 1  # [query, key]
        r_q, r_k, r_v = (self.draw(f"{name}.distances.{part}", 2 * span - 1, c // 2)[distances] for part in ("query", "key", "value"))
        scores = q @ k.mT + torch.einsum("...od,opd->...op", q, r_q) + torch.einsum("...pd,opd->...op", k, r_k)
        weights = torch.softmax(scores / (c // 2) ** 0.5, -1)
        read = weights @ v + torch.einsum("...op,opd->...od", weights, r_v)
        return self.linear(name + ".output", read.transpose(-3, -2).flatten(-2), c, False)

    def between(self, x, attention):
        b, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        if attention == "axial":
            lines = self.along("between.Axial.height", x.permute(0, 3, 2, 1), max(h, w))
            lines = self.along("between.Axial.width", lines.transpose(1, 2), max(h, w))
            return x + lines.permute(0, 3, 1, 2)
        if attention in ("non-local", "gaussian", "dot", "concatenation"):
            name = "between.NonLocal."
            embed = lambda part: self.linear(name + part, tokens, c // 2, False)
            theta, phi = (tokens, tokens) if attention == "gaussian" else (embed("theta"), embed("phi"))
            if attention == "concatenation":
                w_f = self.draw(name + "w_f", c)
                pairs = torch.cat([theta[:, :, None].expand(-1, -1, h * w, -1), phi[:, None].expand(-1, h * w, -1, -1)], 3)
                weights = F.relu(pairs @ w_f) / (h * w)
            elif attention == "dot":
                weights = theta @ phi.mT / (h * w)
            else:
                weights = torch.softmax(theta @ phi.mT, 2)
            read = self.linear(name + "w_z", weights @ embed("g"), c, False)
        elif attention == "self":
            name = "between.SelfAttention.heads."
            positioned = tokens + self.draw("between.SelfAttention.positions", h * w, c)
            q, k, v = (self.linear(f"{name}projection.Separate.{part}", positioned, c, False).unflatten(2, (2, -1)).transpose(1, 2)
                       for part in ("query", "key", "value"))
            weights = torch.softmax(q @ k.transpose(2, 3) / (c // 2) ** 0.5, 3)
            read = self.linear(name + "output", (weights @ v).transpose(1, 2).flatten(2), c, False)
        else:
            return x
        return x + read.transpose(1, 2).reshape(b, c, h, w)


def resnet(depth, width, shape, attention="none", training=True):
    blocks, channels, expansion = DEPTHS[depth]
    channels = max(1, round(channels * width))
    large = len(blocks) == 4

    def compute(draw):
        net = Net(draw, training)
        x = draw("images", *shape, scale=2.0)
        x = F.relu(net.norm("bn1", net.conv("conv1", x, channels, 7 if large else 3, 2 if large else 1)))
        if large:
            x = F.max_pool2d(x, 3, 2, 1)
        for s, count in enumerate(blocks):
            inside = channels << s
            outputs = inside * expansion
            for i in range(count):
                if s + 2 == len(blocks) and i + 1 == count:
                    x = net.between(x, attention)
                name, stride = f"stages.{s}.{i}", 2 if s > 0 and i == 0 else 1
                skip = x
                if stride > 1 or x.shape[1] != outputs:
                    skip = net.normed(name + ".skip", x, outputs, 1, stride)
                if expansion == 1:
                    y = F.relu(net.normed(name + ".branch.0", x, outputs, 3, stride))
                    y = net.normed(name + ".branch.1", y, outputs, 3)
                else:
                    y = F.relu(net.normed(name + ".branch.0", x, inside, 1))
                    y = F.relu(net.normed(name + ".branch.1", y, inside, 3, stride))
                    y = net.normed(name + ".branch.2", y, outputs, 1)
                x = F.relu(net.gate(name + ".gate", y, attention) + skip)
        logits = net.linear("fc", x.mean((2, 3)), CLASSES)
        return (logits * draw.constant("loss", *logits.shape)).sum(), {"logits": logits}

    return compute


def rotated(x, rows, columns, base=100.0):
    """`x [batch, heads, 1 + cells, r]` rotated by row and column (Heo et al. 2024); the class token stays as it is."""
    r = x.shape[-1]
    cells = torch.arange(rows * columns, dtype=x.dtype)
    turns = base ** -(torch.arange(r // 4, dtype=x.dtype) / (r // 4))
    angles = torch.cat([cells.div(columns, rounding_mode="floor")[:, None] * turns, (cells % columns)[:, None] * turns], 1)
    angles = torch.cat([torch.zeros(1, r // 2, dtype=x.dtype), angles])
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def vit(shape, patch, d, layers, heads, f, pooling, positions="learned", stem="patches"):
    def compute(draw):
        net = Net(draw, True)
        x, size = draw("images", *shape, scale=2.0), patch
        halvings = patch.bit_length() - 1 if stem == "convolutions" else 0
        for i in range(halvings):
            x = F.relu(net.conv(f"stem.{i}", x, d >> halvings - 1 - i, 3))
            x, size = F.max_pool2d(x, 3, 2, 1), size // 2
        b, c, h, w = x.shape
        rows, columns = h // size, w // size
        patches = x.reshape(b, c, rows, size, columns, size).permute(0, 2, 4, 1, 3, 5).reshape(b, rows * columns, -1)
        tokens = net.linear("embedding.projection", patches, d)
        tokens = torch.cat([draw("embedding.class_token", d).expand(b, 1, d), tokens], 1)
        if positions == "learned":
            x = tokens + draw("embedding.positions", 1 + rows * columns, d)
        elif positions == "sinusoidal":
            x = tokens + torch.cat([torch.zeros(1, d), sines(rows, columns, d, tokens)])
        else:
            x = tokens
        norm = lambda name, x: F.layer_norm(x, (d,), draw(name + ".weight", d, scale=1.0), draw(name + ".bias", d), 1e-6)
        maps = {}
        for i in range(layers):
            name = f"stack.layers.{i}."
            y = norm(name + "attention_block.norm", x)
            joint = net.linear(name + "attention.projection.Fused.query_key_value", y, 3 * d)
            q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in joint.chunk(3, 2))
            if positions == "rotary":
                q, k = (rotated(x, rows, columns) for x in (q, k))
            weights = torch.softmax(q @ k.transpose(2, 3) / (d // heads) ** 0.5, 3)
            maps[f"weights.{i}"] = weights
            x = x + net.linear(name + "attention.output", (weights @ v).transpose(1, 2).flatten(2), d)
            y = norm(name + "feed_forward_block.norm", x)
            y = F.gelu(net.linear(name + "feed_forward.inner", y, f))
            x = x + net.linear(name + "feed_forward.outer", y, d)
        x = norm("stack.norm", x)
        logits = net.linear("head", x[:, 0] if pooling == "class" else x[:, 1:].mean(1), CLASSES)
        return (logits * draw.constant("loss", *logits.shape)).sum(), {"logits": logits, **maps}

    return compute


def timm_vit(shape, patch, d, layers, heads, f, pooling, distillation=False):
    """The whole network of timm, whose linear layers are `[outputs, inputs]`."""
    def compute(draw):
        _, c, h, w = shape
        weights = {"cls_token": draw("embedding.class_token", d)[None, None],
                   "pos_embed": draw("embedding.positions", 1 + h // patch * (w // patch), d)[None]}
        if distillation:  # Its position is part of the token on the Rust side.
            weights["dist_token"] = draw("distillation.token", d)[None, None]
            own, positions = torch.zeros_like(weights["dist_token"]), weights["pos_embed"]
            weights["pos_embed"] = torch.cat([positions[:, :1], own, positions[:, 1:]], 1)

        def linear(of_timm, name, inputs, outputs):
            weights[of_timm + ".weight"] = draw(name + ".weight", inputs, outputs).T
            weights[of_timm + ".bias"] = draw(name + ".bias", outputs)

        def norm(of_timm, name):
            weights[of_timm + ".weight"] = draw(name + ".weight", d, scale=1.0)
            weights[of_timm + ".bias"] = draw(name + ".bias", d)

        linear("patch_embed.proj", "embedding.projection", c * patch * patch, d)
        weights["patch_embed.proj.weight"] = weights["patch_embed.proj.weight"].reshape(d, c, patch, patch)
        for i in range(layers):
            block, name = f"blocks.{i}.", f"stack.layers.{i}."
            norm(block + "norm1", name + "attention_block.norm")
            linear(block + "attn.qkv", name + "attention.projection.Fused.query_key_value", d, 3 * d)
            linear(block + "attn.proj", name + "attention.output", d, d)
            norm(block + "norm2", name + "feed_forward_block.norm")
            linear(block + "mlp.fc1", name + "feed_forward.inner", d, f)
            linear(block + "mlp.fc2", name + "feed_forward.outer", f, d)
        norm("norm", "stack.norm")
        linear("head", "head", d, CLASSES)
        kind = VisionTransformerDistilled if distillation else VisionTransformer
        model = kind(img_size=(h, w), patch_size=patch, in_chans=c, num_classes=CLASSES, embed_dim=d, depth=layers, num_heads=heads,
                     mlp_ratio=f / d, global_pool={"class": "token", "mean": "avg"}[pooling], fc_norm=False, dtype=draw.dtype)
        if distillation:
            linear("head_dist", "distillation.head", d, CLASSES)
            model.set_distilled_training()
        maps = {}
        for i, block in enumerate(model.blocks):
            block.attn.fused_attn = False
            block.attn.attn_drop.register_forward_hook(lambda _, __, weights, key=f"weights.{i}": maps.update({key: weights}))
        logits, scores = functional_call(model, weights, draw("images", *shape, scale=2.0)), {}
        if distillation:  # In training it has the scores of each head, otherwise, as we always do, their mean.
            scores = {"class": logits[0], "distillation": logits[1]}
            logits = (logits[0] + logits[1]) / 2
        return (logits * draw.constant("loss", *logits.shape)).sum(), {"logits": logits, **scores, **maps}

    return compute


def unit(net, name, x, outputs, stride=1):
    """Pre-activation: norm, ReLU, convolution; 1x1, 3x3, 1x1 with a quarter of the channels inside."""
    def step(part, x, channels, kernel, stride=1):
        return net.conv(f"{name}.{part}.convolution", F.relu(net.norm(f"{name}.{part}.norm", x)), channels, kernel, stride)
    hidden = outputs // 4
    y = step("expand", step("window", step("reduce", x, hidden, 1), hidden, 3, stride), outputs, 1)
    changes = stride > 1 or x.shape[1] != outputs
    return y + (net.conv(name + ".shortcut", x, outputs, 1, stride) if changes else x)


def mask(net, name, x, levels, activation):
    channels, size = x.shape[1], x.shape[2:]

    def pool(x):
        return F.max_pool2d(x, [min(3, side) for side in x.shape[2:]], 2, ceil_mode=True)

    def larger(x, size):
        return F.interpolate(x, size=size, mode="bilinear", align_corners=True)

    kept = []
    for i in range(levels - 1):
        x = unit(net, f"{name}.scales.{i}.down.0", pool(x), channels)
        kept.append(x)
    x = pool(x)
    for j in range(2):
        x = unit(net, f"{name}.bottom.{j}", x, channels)
    for i in reversed(range(levels - 1)):
        x = larger(x, kept[i].shape[2:]) + unit(net, f"{name}.scales.{i}.skip", kept[i], channels)
        x = unit(net, f"{name}.scales.{i}.up.0", x, channels)
    x = larger(x, size)
    for j in range(2):
        x = net.conv(f"{name}.score.{j}.convolution", F.relu(net.norm(f"{name}.score.{j}.norm", x)), channels, 1)
    if activation == "mixed":
        return torch.sigmoid(x)
    if activation == "channel":
        return x / x.norm(dim=1, keepdim=True)
    mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), correction=0, keepdim=True)
    return torch.sigmoid((x - mean) / (variance + 1e-5).sqrt())


def residual_attention(depth, base, shape, activation, learning):
    def compute(draw):
        net = Net(draw, False, 1.0)
        x = draw("images", *shape, scale=2.0)
        x = F.relu(net.norm("stem_norm", net.conv("stem", x, base // 4, 3)))
        maps = {}
        for s, count in enumerate({56: (1, 1, 1), 92: (1, 2, 3)}[depth]):
            x = unit(net, f"stages.{s}.unit", x, base << s, 2 if s else 1)
            for i in range(count):
                name = f"stages.{s}.modules.{i}"
                x = unit(net, name + ".before", x, base << s)
                trunk = x
                for j in range(2):
                    trunk = unit(net, f"{name}.trunk.{j}", trunk, base << s)
                m = mask(net, name + ".mask", x, 3 - s, activation)
                maps[f"mask.{len(maps)}"] = m
                x = unit(net, name + ".after", (1 + m if learning else m) * trunk, base << s)
        for j in range(3):
            x = unit(net, f"last.{j}", x, base << 3, 2 if j == 0 else 1)
        logits = net.linear("fc", F.relu(net.norm("norm", x)).mean((2, 3)), CLASSES)
        return (logits * draw.constant("loss", *logits.shape)).sum(), {"logits": logits, **maps}

    return compute


WORDS = 9
CAPTIONS = ([4, 6], [7, 5, 6, 4])  # 0 pads, 1 starts, 2 ends


def sines(rows, columns, features, like):
    """Sines and cosines of the row in the first half of the features, of the column in the second."""
    def table(length, size):
        angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, :size]
    half = features // 2
    of_rows = table(rows, half)[:, None].expand(rows, columns, half)
    of_columns = table(columns, features - half)[None].expand(rows, columns, features - half)
    return torch.cat([of_rows, of_columns], 2).flatten(0, 1).to(like.dtype)


def captioner(shape, decoder, positions, penalty, entropy, channels=4, m=6, n=7, a=5):
    def compute(draw):
        net = Net(draw, True)
        x = F.relu(net.normed("backbone.stem", draw("images", *shape, scale=2.0), channels, 3, 2))
        for s in range(2):
            name, outputs = f"backbone.stages.{s}.0", channels << s
            skip = x if s == 0 else net.normed(name + ".skip", x, outputs, 1, 2)
            y = F.relu(net.normed(name + ".branch.0", x, outputs, 3, 1 + (s > 0)))
            x = F.relu(net.normed(name + ".branch.1", y, outputs, 3) + skip)
        rows, columns = x.shape[2:]
        regions = x.flatten(2).transpose(1, 2)
        d = regions.shape[2]
        if positions:
            regions = regions + sines(rows, columns, d, regions)
        mean = regions.mean(1)
        score = "attention.score.Additive."
        keys, vector = net.linear(score + "key", regions, a, decoder == "ShowAttendTell"), draw(score + "vector", a)

        def attend(state):
            e = torch.tanh(keys + net.linear(score + "query", state, a, False)[:, None]) @ vector
            weights = e.softmax(1)
            return torch.einsum("bl,bld->bd", weights, regions), weights

        def lstm(name, x, h, c):
            gates = net.linear(name + ".input", x, 4 * n) + h @ draw(name + ".recurrent", n, 4 * n)
            i, f, g, o = gates.chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c

        longest = max(map(len, CAPTIONS)) + 1
        padded = lambda ids: torch.tensor([one + [0] * (longest - len(one)) for one in ids])
        inputs, outputs = padded([[1] + one for one in CAPTIONS]), padded([one + [2] for one in CAPTIONS])
        embedded = draw("embedding.weight", WORDS, m)[inputs]
        readouts, looks = [], []
        name = "decoder." + decoder
        if decoder == "ShowAttendTell":
            h, c = (torch.tanh(net.linear(f"{name}.initial_{part}", mean, n)) for part in ("hidden", "cell"))
            for t in range(longest):
                z, weights = attend(h)
                z = z * torch.sigmoid(net.linear(name + ".gate", h, 1))
                h, c = lstm(name + ".lstm", torch.cat([embedded[:, t], z], 1), h, c)
                readouts.append(embedded[:, t] + net.linear(name + ".readout_state", h, m)
                                + net.linear(name + ".readout_context", z, m, False))
                looks.append(weights)
        else:
            h1 = c1 = h2 = c2 = torch.zeros(len(CAPTIONS), n, dtype=regions.dtype)
            for t in range(longest):
                h1, c1 = lstm(name + ".asking", torch.cat([h2, mean, embedded[:, t]], 1), h1, c1)
                z, weights = attend(h1)
                h2, c2 = lstm(name + ".writing", torch.cat([z, h1], 1), h2, c2)
                readouts.append(h2)
                looks.append(weights)
        logits, weights = net.linear("output", torch.stack(readouts, 1), WORDS), torch.stack(looks, 1)
        real = (outputs > 0).to(regions.dtype)
        loss = F.cross_entropy(logits.flatten(0, 1), outputs.flatten(), ignore_index=0)
        missing = 1 - (weights * real[:, :, None]).sum(1)
        spread = -(weights * (weights + 1e-9).log() * real[:, :, None]).sum()
        loss = loss + (penalty * (missing ** 2).sum() + entropy * spread) / real.sum()
        return loss, {"logits": logits, "weights": weights}

    return compute


golden = GoldenFile()
for decoder, positions, penalty, entropy in (("ShowAttendTell", True, 0.0, 0.0), ("ShowAttendTell", False, 0.75, 0.25),
                                             ("TopDown", True, 0.0, 0.0), ("TopDown", False, 0.0, 0.5)):
    shape = (2, 3, 12, 10)
    golden.case(f"captioner {decoder} {positions} {penalty}", captioner(shape, decoder, positions, penalty, entropy),
                kind="captioner", shape=shape, decoder=decoder, positions=positions, penalty=penalty, entropy=entropy)
for attention in ("none", "se", "cbam", "spatial", "non-local", "self", "axial 3", "gaussian", "dot", "concatenation 2"):
    shape, name = (4, 3, 9, 7), f"resnet 20 {attention}"
    attention = attention.split()[0]
    golden.case(name, resnet(20, 0.125, shape, attention), kind="resnet", depth=20, width=0.125, shape=shape, attention=attention,
                training=True)
for depth, width, shape, training, number in ((20, 0.03125, (2, 1, 8, 11), False, ""), (18, 0.03125, (3, 3, 45, 37), True, ""),
                                              (50, 0.03125, (3, 1, 33, 40), False, ""), (32, 0.125, (4, 3, 9, 7), True, ""),
                                              (34, 0.03125, (2, 3, 37, 45), False, " 2"), (56, 0.125, (2, 3, 7, 10), False, " 2")):
    golden.case(f"resnet {depth} {training}{number}", resnet(depth, width, shape, "none", training), kind="resnet", depth=depth,
                width=width, shape=shape, attention="none", training=training)
for pooling in ("class", "mean"):
    shape = (2, 3, 12, 8)
    golden.case(f"vit {pooling}", timm_vit(shape, 4, 12, 2, 3, 20, pooling), kind="vit", shape=shape, patch=4, d=12, layers=2, heads=3,
                f=20, pooling=pooling)
for depth, activation, learning, base, shape, number in ((56, "mixed", True, 4, (2, 3, 14, 11), 447),
                                                         (56, "mixed", False, 4, (2, 3, 14, 11), 760),
                                                         (92, "channel", True, 4, (2, 3, 14, 11), 232),
                                                         (56, "spatial", True, 8, (2, 3, 19, 13), 256)):
    golden.case(f"residual-attention {depth} {activation} {learning} {number}",
                residual_attention(depth, base, shape, activation, learning), kind="residual-attention", depth=depth, width=base / 256,
                shape=shape, activation=activation, learning=learning, training=False)
for positions in ("sinusoidal", "rotary"):
    shape = (2, 3, 12, 8)
    golden.case(f"vit {positions}", vit(shape, 4, 24, 2, 3, 20, "class", positions), kind="vit", shape=shape, patch=4, d=24, layers=2,
                heads=3, f=20, pooling="class", positions=positions)
shape = (4, 3, 12, 8)
golden.case("vit convolutions", vit(shape, 4, 12, 2, 3, 20, "mean", stem="convolutions"), kind="vit", shape=shape, patch=4, d=12,
            layers=2, heads=3, f=20, pooling="mean", stem="convolutions")
shape = (3, 1, 9, 15)
golden.case("vit distillation", timm_vit(shape, 3, 10, 3, 2, 14, "class", True), kind="vit", shape=shape, patch=3, d=10, layers=3, heads=2,
            f=14, pooling="class", distillation=True)
golden.save(HERE / "images.safetensors")
