"""The PyTorch twin of regard's luong: Luong, Pham, Manning 2015; general score, global attention, input feeding.

The encoder is torch.nn.LSTM, whose loop runs in C++; the decoder, which must wait for each step's attention,
is a loop over cells whose products are as few as the wiring allows: embeddings projected for the whole
sequence, one product a layer and step. The output layer runs for all steps at once.
"""

import torch
from torch import nn

from cells_torch import Lstm, Tables


class Luong(nn.Module):
    def __init__(self, config):
        super().__init__()
        fixed = {"score": "general", "locality": "global", "input_feeding": True, "reading": "bidirectional"}
        other = {key: config[key] for key, value in fixed.items() if config[key] != value}
        if other:
            raise ValueError(f"luong_torch.py knows {fixed} only; got {other}")
        m, n, layers = config["embedding"], config["hidden"], config["layers"]
        self.tables = Tables(config["source_vocabulary"], config["target_vocabulary"], m, n, config["tie"])
        self.encoder = nn.LSTM(m, n // 2, layers, bidirectional=True, dropout=config["layer_dropout"])
        for name, parameter in self.encoder.named_parameters():
            # torch.nn.LSTM adds two biases; regard has one.
            if name.startswith("bias_hh"):
                nn.init.zeros_(parameter).requires_grad_(False)
        self.key = nn.Linear(n, n, bias=False)
        self.decoder = nn.ModuleList(Lstm(m + n if layer == 0 else n, n) for layer in range(layers))
        self.combine = nn.Linear(2 * n, n, bias=False)
        self.embedding_dropout = nn.Dropout(config["embedding_dropout"])
        self.layer_dropout = nn.Dropout(config["layer_dropout"])
        self.annotation_dropout = nn.Dropout(config["annotation_dropout"])
        self.output_dropout = nn.Dropout(config["output_dropout"])

    def forward(self, source, inputs):
        """source [time, batch], inputs [time, batch], no padding -> logits [time * batch, vocabulary]."""
        annotations, last = self.encoder(self.embedding_dropout(self.tables.embed_source(source)))
        # [layers * 2, batch, n / 2] -> a list of [batch, n], one a layer.
        hidden, cell = (list(state.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2).unbind(0)) for state in last)
        values = self.annotation_dropout(annotations).transpose(0, 1).contiguous()  # [batch, source, n]
        keys = self.key(values)
        y = self.embedding_dropout(self.tables.target(inputs))
        bottom = self.decoder[0]
        m = y.shape[2]
        projected = torch.addmm(bottom.bias, y.flatten(0, 1), bottom.weight[:m]).view(*y.shape[:2], -1)
        fed = torch.cat([bottom.weight[m:], bottom.recurrent])
        upper = [torch.cat([layer.weight, layer.recurrent]) for layer in self.decoder[1:]]
        attentional, outputs = torch.zeros_like(hidden[0]), []
        for x in projected.unbind(0):
            attentional, hidden, cell = self.step(x, attentional, hidden, cell, keys, values, fed, upper)
            outputs.append(attentional)
        return self.tables.logits(torch.stack(outputs).flatten(0, 1))

    def step(self, x, attentional, hidden, cell, keys, values, fed, upper):
        """One step of the decoder: h~ and the states after it."""
        hidden, cell = list(hidden), list(cell)
        gates = torch.addmm(x, torch.cat([attentional, hidden[0]], 1), fed)
        hidden[0], cell[0] = Lstm.step(gates, cell[0])
        for l, weight in enumerate(upper, 1):
            below = torch.cat([self.layer_dropout(hidden[l - 1]), hidden[l]], 1)
            hidden[l], cell[l] = Lstm.step(torch.addmm(self.decoder[l].bias, below, weight), cell[l])
        top = hidden[-1]
        weights = torch.bmm(keys, top[:, :, None]).softmax(1)
        context = torch.bmm(weights.transpose(1, 2), values)[:, 0]
        attentional = self.output_dropout(self.combine(torch.cat([context, top], 1)).tanh())
        return attentional, hidden, cell

    def compile_steps(self):
        """Compiles the steps of the loop. A graph of all time steps would take inductor many minutes."""
        self.step = torch.compile(self.step, dynamic=False)

    @staticmethod
    def convert(arrays):
        """regard's weights by the names here."""
        kinds = {"input.weight": "weight_ih", "input.bias": "bias_ih", "recurrent": "weight_hh"}
        own = {}
        for name, array in arrays.items():
            name = name.removeprefix("Luong.").replace("attention.score.General.", "")
            if name.startswith("encoder."):
                _, layer, _, direction, _, _, *what = name.split(".")
                name = f"encoder.{kinds['.'.join(what)]}_l{layer}{'_reverse' if direction == '1' else ''}"
            own[name.replace("decoder.layers.", "decoder.").replace(".input.", ".")] = array
        return own
