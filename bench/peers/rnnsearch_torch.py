"""The PyTorch twin of regard's rnnsearch: Bahdanau, Cho, Bengio 2014, App. A, in eager mode.

Written as one would write it well in PyTorch: input projections for the whole sequence at once, U h once
per sentence, the readout and the output layer for all steps at once, fused Adam. The weights keep regard's
names and layouts (x W with W [inputs, outputs]; gates z | r | h), so that both can start from one file.

`encoder="cell"` runs Bahdanau's GRU (reset before the product) in both directions, step by step: the same
model to the last digit. `encoder="torch"` takes torch.nn.GRU instead, whose loop runs in C++ but which
resets after the product: another model of the same size, for those who would make that trade.

As a program it serves training_step.py: see there.
"""

import argparse
import json
import sys
import time

import torch
from safetensors.torch import load_file
from torch import nn

PADDING, START, END = 0, 1, 2


class Cell(nn.Module):
    """h' = (1 - z) h + z tanh(W x + U [r h] + C c), on projected inputs."""

    def __init__(self, inputs, size):
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.empty(inputs, 3 * size))
        self.bias = nn.Parameter(torch.empty(3 * size))
        self.recurrent = nn.Parameter(torch.empty(size, 3 * size))

    def project(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)

    def step(self, x, h, gates, candidate):
        """`gates` and `candidate` are the two halves of `recurrent`."""
        n = self.size
        z, r = torch.addmm(x[:, : 2 * n], h, gates).sigmoid().chunk(2, 1)
        new = torch.addmm(x[:, 2 * n :], r * h, candidate).tanh()
        return torch.lerp(h, new, z)

    def halves(self):
        return self.recurrent[:, : 2 * self.size], self.recurrent[:, 2 * self.size :]

    def sequence(self, x, reverse):
        """x [time, batch, inputs] -> states [time, batch, size]."""
        x, h, states = self.project(x), x.new_zeros(x.shape[1], self.size), []
        halves = self.halves()
        steps = x.unbind(0)
        for step in reversed(steps) if reverse else steps:
            h = self.step(step, h, *halves)
            states.append(h)
        return torch.stack(states[::-1] if reverse else states)


class RnnSearch(nn.Module):
    def __init__(self, vocabulary=8000, size=256, encoder="cell"):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, size), nn.Embedding(vocabulary, size)
        self.output = nn.Linear(size, vocabulary)
        if encoder == "torch":
            self.encoder = nn.GRU(size, size, bidirectional=True)
        else:
            self.encoder_forward, self.encoder_backward = Cell(size, size), Cell(size, size)
        self.initial = nn.Linear(size, size)
        self.query = nn.Linear(size, size, bias=False)
        self.key = nn.Linear(2 * size, size)
        self.vector = nn.Parameter(torch.empty(size))
        self.decoder = Cell(size, size)
        self.decoder_context = nn.Linear(2 * size, 3 * size, bias=False)
        self.readout_state = nn.Linear(size, 2 * size)
        self.readout_embedding = nn.Linear(size, 2 * size, bias=False)
        self.readout_context = nn.Linear(2 * size, 2 * size, bias=False)
        for name, parameter in self.named_parameters():
            bound = 0.1 if name.startswith(("source", "target")) else size**-0.5
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, source, inputs):
        """source [time, batch], inputs [time, batch], no padding -> logits [time * batch, vocabulary]."""
        x = self.source(source)
        if hasattr(self, "encoder"):
            annotations = self.encoder(x)[0]
            first = annotations[0, :, self.decoder.size :]
        else:
            backward = self.encoder_backward.sequence(x, reverse=True)
            annotations = torch.cat([self.encoder_forward.sequence(x, reverse=False), backward], 2)
            first = backward[0]
        h = self.initial(first).tanh()
        values = annotations.transpose(0, 1).contiguous()  # [batch, source, 2n]
        keys = self.key(values)
        y = self.target(inputs)
        halves = self.decoder.halves()
        before, contexts = [], []
        for x in self.decoder.project(y).unbind(0):
            before.append(h)
            scores = (keys + self.query(h)[:, None]).tanh() @ self.vector
            context = torch.bmm(scores.softmax(1)[:, None], values)[:, 0]
            contexts.append(context)
            h = self.decoder.step(x + self.decoder_context(context), h, *halves)
        readout = (
            self.readout_state(torch.stack(before))
            + self.readout_embedding(y)
            + self.readout_context(torch.stack(contexts))
        )
        maxout = readout.unflatten(2, (-1, 2)).amax(3)
        return self.output(maxout.flatten(0, 1))

    def load(self, arrays):
        """Takes the weights of regard's file; with encoder="torch" the encoder keeps its own."""
        own = dict(self.named_parameters())
        linears = {name for name, module in self.named_modules() if isinstance(module, nn.Linear)}
        renamed = {
            "tables.source": "source",
            "tables.target": "target",
            "tables.output": "output",
            "attention.score.Additive.": "",
            ".input.": ".",
        }
        with torch.no_grad():
            for name, array in arrays.items():
                name = name.removeprefix("RnnSearch.")
                for theirs, ours in renamed.items():
                    name = name.replace(theirs, ours)
                if hasattr(self, "encoder") and name.startswith("encoder_"):
                    continue
                transposed = name.endswith(".weight") and name.removesuffix(".weight") in linears
                own.pop(name).copy_(array.T if transposed else array)
        left = [name for name in own if not name.startswith("encoder.")]
        assert not left, f"weights that the file lacks: {left}"


class Training:
    """Updates by label-smoothed cross-entropy, clipping at norm 1 and fused Adam."""

    def __init__(self, arrays, encoder):
        arrays = dict(arrays)
        sources, targets = (arrays.pop(f"ids.{side}").long() for side in ("source", "target"))
        self.batches = list(zip(sources.tolist(), targets.tolist()))
        self.model = RnnSearch(encoder=encoder)
        self.model.load(arrays)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)
        self.loss = nn.CrossEntropyLoss(ignore_index=PADDING, label_smoothing=0.1)
        self.steps = 0

    def update(self):
        """One update; gives its seconds and the loss before it."""
        sources, targets = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        started = time.perf_counter()
        source = torch.tensor([[*sentence, END] for sentence in sources]).T.contiguous()
        inputs = torch.tensor([[START, *sentence] for sentence in targets]).T.contiguous()
        outputs = torch.tensor([[*sentence, END] for sentence in targets]).T.contiguous()
        loss = self.loss(self.model(source, inputs), outputs.flatten())
        value = loss.item()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return time.perf_counter() - started, value


def serve():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--encoder", choices=("cell", "torch"), default="cell")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    training = Training(load_file(arguments.weights), arguments.encoder)
    for line in sys.stdin:
        seconds, losses = zip(*(training.update() for _ in range(int(line))))
        print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)


if __name__ == "__main__":
    serve()
