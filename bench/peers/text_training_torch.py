#!/usr/bin/env python3
"""Times updates of a small GPT in PyTorch (eager, f32): the twin of recipes/shakespeare-transformer-small.toml.

    python3 bench/peers/text_training_torch.py [--threads 2] [--updates 60]

prints the median of an update in milliseconds. Regard's side, on the same machine with nothing else running:

    regard train recipes/shakespeare-transformer-small.toml --folder /tmp/run --set training.steps=400 --set training.validate_every=10000

prints tokens per second; an update has 12 x 64 tokens. Random tokens stand for the text: only time is measured.
"""

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, CONTEXT, BATCH, SIZE, LAYERS, HEADS = 65, 64, 12, 128, 4, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(SIZE, bias=False) for _ in range(2))
        self.joint = nn.Linear(SIZE, 3 * SIZE, bias=False)
        self.output = nn.Linear(SIZE, SIZE, bias=False)
        self.inner = nn.Linear(SIZE, 4 * SIZE, bias=False)
        self.outer = nn.Linear(4 * SIZE, SIZE, bias=False)

    def forward(self, x):
        heads = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.joint(self.norms[0](x)).split(SIZE, 2))
        read = F.scaled_dot_product_attention(*heads, is_causal=True)  # [batch, heads, time, head]
        x = x + self.output(read.transpose(1, 2).flatten(2))
        return x + self.outer(F.gelu(self.inner(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, SIZE)
        self.positions = nn.Embedding(CONTEXT, SIZE)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(SIZE, bias=False)

    def forward(self, text):
        x = self.tokens(text[:, :-1]) + self.positions.weight
        logits = self.norm(self.blocks(x)) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--updates", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    seconds = []
    for _ in range(options.updates + 3):
        begun = time.perf_counter()
        loss = model(torch.randint(0, VOCABULARY, (BATCH, CONTEXT + 1)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    # The first ones warm up.
    print(f"{1000 * statistics.median(seconds[3:]):.1f} ms an update")


if __name__ == "__main__":
    main()
