"""Recurrent cells and tables of the PyTorch twins, with regard's names and layouts (x W with W [inputs, outputs])."""

import torch
from torch import nn
from torch.nn import functional as F


class Tables(nn.Module):
    """Source table, target table and output layer: all separate, all shared (`tie` "all"), or target and output shared."""

    def __init__(self, source, target, embedding, readout, tie):
        super().__init__()
        self.source = None if tie == "all" else nn.Embedding(source, embedding)
        self.target = nn.Embedding(target, embedding)
        self.output = nn.Linear(readout, target) if tie == "none" else None
        self.output_bias = None if tie == "none" else nn.Parameter(torch.zeros(target))

    def embed_source(self, ids):
        return (self.source or self.target)(ids)

    def logits(self, readout):
        if self.output is not None:
            return self.output(readout)
        return F.linear(readout, self.target.weight, self.output_bias)


class Cell(nn.Module):
    """A recurrent cell of `gates` gates side by side: W with its bias, and U."""

    def __init__(self, inputs, size, gates):
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.empty(inputs, gates * size))
        self.bias = nn.Parameter(torch.empty(gates * size))
        self.recurrent = nn.Parameter(torch.empty(size, gates * size))

    def project(self, x):
        """W x + b for a whole sequence at once."""
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


class BahdanauGru(Cell):
    """h' = (1 - z) h + z tanh(W x + U [r h]), on projected inputs; gates z | r | candidate."""

    def __init__(self, inputs, size):
        super().__init__(inputs, size, 3)

    def halves(self):
        return self.recurrent[:, : 2 * self.size], self.recurrent[:, 2 * self.size :]

    def step(self, x, h, gates, candidate):
        """`gates` and `candidate` are the two halves of `recurrent`."""
        n = self.size
        z, r = torch.addmm(x[:, : 2 * n], h, gates).sigmoid().chunk(2, 1)
        new = torch.addmm(x[:, 2 * n :], r * h, candidate).tanh()
        return torch.lerp(h, new, z)

    def sequence(self, x, reverse):
        """x [time, batch, inputs] -> states [time, batch, size]."""
        x, h, states = self.project(x), x.new_zeros(x.shape[1], self.size), []
        halves = self.halves()
        steps = x.unbind(0)
        for step in reversed(steps) if reverse else steps:
            h = self.step(step, h, *halves)
            states.append(h)
        return torch.stack(states[::-1] if reverse else states)


class Lstm(Cell):
    """c' = f c + i g, h' = o tanh(c'); gates i | f | g | o."""

    def __init__(self, inputs, size):
        super().__init__(inputs, size, 4)

    @staticmethod
    def step(gates, c):
        """From the sum of all products and the bias."""
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
