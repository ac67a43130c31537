"""The PyTorch side of training.py: updates by label-smoothed cross-entropy, clipping at norm 1 and fused Adam.

Reads a question a line, as crates/train/examples/training_peer does: `N` makes N updates, `check N` the same
with dropout off, `product M K N` times a plain product of f32 matrices, `memory` tells the most memory that the process
has held.
"""

import argparse
import json
import sys
import time

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from luong_torch import Luong
from memory import peak_bytes
from product import rate
from rnnsearch_torch import RnnSearch
from transformer_torch import LanguageModel, Transformer

PADDING, START, END = 0, 1, 2


def build(config, encoder, longest):
    """The twin of the model that `config` describes, for sentences of up to `longest` positions."""
    if config["kind"] == "rnnsearch":
        return RnnSearch(config, encoder)
    if config["kind"] == "luong":
        return Luong(config)
    if config["kind"] == "transformer":
        return Transformer(config, longest)
    if config["kind"] == "language-model":
        return LanguageModel(config, longest)
    raise ValueError(f"no PyTorch twin of model {config['kind']!r}")


def load(model, arrays):
    """Copies regard's weights in; weights that the file lacks (those of a library's encoder) stay as drawn."""
    own = dict(model.named_parameters())
    # x W in regard, x Wᵀ in torch.nn's modules.
    turned = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.RNNBase))
        for name, parameter in module.named_parameters()
        if parameter.dim() == 2
    }
    with torch.no_grad():
        for name, array in model.convert(arrays).items():
            if name not in own and hasattr(model, "encoder") and name.startswith("encoder_"):
                continue
            own.pop(name).copy_(array.T if name in turned else array)
    left = [name for name, parameter in own.items() if parameter.requires_grad and not name.startswith("encoder.")]
    if left:
        raise ValueError(f"weights that regard's file lacks: {left}")


class Training:
    """A model, its optimizer and the batches it sees."""

    def __init__(self, config, arrays, encoder, compiled):
        arrays = dict(arrays)
        sources, targets = (arrays.pop(f"ids.{side}").long() for side in ("source", "target"))
        self.batches = list(zip(sources.tolist(), targets.tolist()))
        self.model = build(config, encoder, 1 + targets.shape[2])
        load(self.model, arrays)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
        if compiled and hasattr(self.model, "compile_steps"):
            self.model.compile_steps()
            self.cross_entropy = torch.compile(self.cross_entropy, dynamic=False)
        elif compiled:
            self.loss = torch.compile(self.loss, dynamic=False)
        self.steps = 0

    def loss(self, source, inputs, outputs):
        """The mean loss of a target token."""
        return self.cross_entropy(self.model(source, inputs), outputs)

    def cross_entropy(self, logits, outputs):
        """From the logits."""
        return F.cross_entropy(logits, outputs, ignore_index=PADDING, label_smoothing=0.1)

    def update(self):
        """One update; gives its seconds and the loss before it."""
        sources, targets = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        started = time.perf_counter()
        source = torch.tensor([[*sentence, END] for sentence in sources]).T.contiguous()
        inputs = torch.tensor([[START, *sentence] for sentence in targets]).T.contiguous()
        outputs = torch.tensor([[*sentence, END] for sentence in targets]).T.contiguous()
        loss = self.loss(source, inputs, outputs.flatten())
        value = loss.item()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return time.perf_counter() - started, value

    def answer(self, question):
        """The answer to a question."""
        if question == "memory":
            return {"peak_bytes": peak_bytes()}
        if question.startswith("product "):
            return {"multiply_adds": rate(torch.full, torch.mm, question)}
        count = question.removeprefix("check ")
        self.model.train(count == question)
        seconds, losses = zip(*(self.update() for _ in range(int(count))))
        return {"seconds": seconds, "losses": losses}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, type=json.loads, help="a model's configuration, as JSON")
    parser.add_argument("--weights", required=True, help="what training_peer --export wrote")
    parser.add_argument("--encoder", choices=("cell", "library"), default="cell", help="of rnnsearch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    training = Training(arguments.model, load_file(arguments.weights), arguments.encoder, arguments.compile)
    for line in sys.stdin:
        print(json.dumps(training.answer(line.strip())), flush=True)


if __name__ == "__main__":
    main()
