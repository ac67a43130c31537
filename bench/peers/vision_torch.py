"""PyTorch's side of vision.py: answers each line `WORK N` with a line of JSON, {"seconds": [..]}.

    python3 bench/peers/vision_torch.py [--channels-last]

The work is that of crates/train/examples/vision_peer.rs.
"""

import argparse
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        changes = stride > 1 or inputs != outputs
        self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)) if changes else nn.Identity()

    def forward(self, x):
        inner = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(inner)) + self.skip(x))


def resnet20():
    blocks, inputs = [], 16
    for stage, outputs in enumerate((16, 32, 64)):
        for block in range(3):
            blocks.append(Block(inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Layer(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.joint, self.output = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.inner, self.outer = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        parts = self.joint(self.norms[0](x)).chunk(3, 2)
        heads = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.output(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.outer(F.gelu(self.inner(self.norms[1](x))))


class VisionTransformer(nn.Module):
    def __init__(self, side, patch, size, layers, heads, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, size, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, size))
        self.positions = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, size))
        self.layers = nn.Sequential(*(Layer(size, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


class NonLocal(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.joint = nn.Conv2d(channels, 3 * (channels // 2), 1)
        self.output = nn.Conv2d(channels // 2, channels, 1)

    def forward(self, x):
        query, key, value = (part.flatten(2).transpose(1, 2)[:, None] for part in self.joint(x).chunk(3, 1))
        read = F.scaled_dot_product_attention(query, key, value, scale=1.0)[:, 0]
        return x + self.output(read.transpose(1, 2).unflatten(2, x.shape[2:]))


def layout(value, options):
    return value.to(memory_format=torch.channels_last) if options.channels_last else value


def repeated(module, shape, both, options):
    module, x = layout(module, options), layout(torch.randn(shape), options)

    def work():
        with torch.set_grad_enabled(both):
            y = module(x.detach().requires_grad_(both))
            if both:
                y.sum().backward()
                module.zero_grad()
    return work


def training(model, batch, options):
    model, images = layout(model, options), layout(torch.randn(batch, 3, 32, 32), options)
    classes = torch.arange(batch) % 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def work():
        optimizer.zero_grad()
        F.cross_entropy(model(images), classes).backward()
        optimizer.step()
    return work


def work_of(name, options):
    both = name.endswith("-both")
    name = name.removesuffix("-both")
    if name.startswith("conv"):
        channels, side = {"conv64": (64, 32), "conv128": (128, 16), "conv16": (16, 32)}[name]
        return repeated(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), (64, channels, side, side), both, options)
    if name == "non-local":
        return repeated(NonLocal(64), (8, 64, 56, 56), both, options)
    if name == "resnet20":
        return training(resnet20(), 128, options)
    if name == "vit":
        return training(VisionTransformer(32, 4, 192, 12, 3, 10), 64, options)
    if name == "vit-b":
        return repeated(VisionTransformer(224, 16, 768, 12, 12, 1000), (4, 3, 224, 224), False, options)
    sys.exit(f"vision_torch.py: unknown work {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels-last", action="store_true", help="the other layout of images in memory")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    current, work = None, None
    for line in sys.stdin:
        name, times = line.split()
        if name != current:
            current, work = name, work_of(name, options)
        seconds = []
        for _ in range(int(times)):
            begun = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begun)
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
