"""The PyTorch twin of regard's rnnsearch: Bahdanau, Cho, Bengio 2014, App. A.

Written as one would write it well in PyTorch: input projections for the whole sequence at once, U h once
per sentence, the readout and the output layer for all steps at once. The weights keep regard's names and
layouts, so that both can start from one file.

`encoder="cell"` runs Bahdanau's GRU (reset before the product) in both directions, step by step: the same
model to the last digit. `encoder="library"` takes torch.nn.GRU instead, whose loop runs in C++ but which
resets after the product: another model of the same size, which one may choose for its speed.
"""

import torch
from torch import nn
from torch.nn import functional as F

from cells_torch import BahdanauGru, Tables


class RnnSearch(nn.Module):
    def __init__(self, config, encoder="cell"):
        super().__init__()
        m, n, l = config["embedding"], config["hidden"], config["maxout"]
        self.tables = Tables(config["source_vocabulary"], config["target_vocabulary"], m, l, config["tie"])
        if encoder == "library":
            self.encoder = nn.GRU(m, n, bidirectional=True)
        else:
            self.encoder_forward, self.encoder_backward = BahdanauGru(m, n), BahdanauGru(m, n)
        self.initial = nn.Linear(n, n)
        self.query = nn.Linear(n, config["attention"], bias=False)
        self.key = nn.Linear(2 * n, config["attention"])
        self.vector = nn.Parameter(torch.empty(config["attention"]))
        self.decoder = BahdanauGru(m, n)
        self.decoder_context = nn.Linear(2 * n, 3 * n, bias=False)
        self.readout_state = nn.Linear(n, 2 * l)
        self.readout_embedding = nn.Linear(m, 2 * l, bias=False)
        self.readout_context = nn.Linear(2 * n, 2 * l, bias=False)
        self.embedding_dropout = nn.Dropout(config["embedding_dropout"])
        self.annotation_dropout = nn.Dropout(config["annotation_dropout"])
        self.output_dropout = nn.Dropout(config["output_dropout"])

    def forward(self, source, inputs):
        """source [time, batch], inputs [time, batch], no padding -> logits [time * batch, vocabulary]."""
        x = self.embedding_dropout(self.tables.embed_source(source))
        if hasattr(self, "encoder"):
            annotations = self.encoder(x)[0]
            first = annotations[0, :, self.decoder.size :]
        else:
            backward = self.encoder_backward.sequence(x, reverse=True)
            annotations = torch.cat([self.encoder_forward.sequence(x, reverse=False), backward], 2)
            first = backward[0]
        h = self.initial(first).tanh()
        values = self.annotation_dropout(annotations.transpose(0, 1).contiguous())  # [batch, source, 2n]
        keys = self.key(values)
        y = self.embedding_dropout(self.tables.target(inputs))
        halves = self.decoder.halves()
        before, contexts = [], []
        for x in self.decoder.project(y).unbind(0):
            before.append(h)
            h, context = self.step(x, h, keys, values, *halves)
            contexts.append(context)
        readout = (
            self.readout_state(torch.stack(before))
            + self.readout_embedding(y)
            + self.readout_context(torch.stack(contexts))
        )
        maxout = F.max_pool1d(readout.flatten(0, 1), 2)
        return self.tables.logits(self.output_dropout(maxout))

    def step(self, x, h, keys, values, gates, candidate):
        """One step of the decoder: the state after it, and the context that it read."""
        scores = (keys + self.query(h)[:, None]).tanh() @ self.vector
        context = torch.bmm(scores.softmax(1)[:, None], values)[:, 0]
        return self.decoder.step(x + self.decoder_context(context), h, gates, candidate), context

    def compile_steps(self):
        """Compiles the steps of loops. A graph of all time steps would take inductor many minutes."""
        self.step = torch.compile(self.step, dynamic=False)
        for cell in (self.encoder_forward, self.encoder_backward):
            cell.step = torch.compile(cell.step, dynamic=False)

    @staticmethod
    def convert(arrays):
        """regard's weights by the names here."""
        removed = {"RnnSearch.": "", "attention.score.Additive.": "", ".input.": "."}
        own = {}
        for name, array in arrays.items():
            for theirs, ours in removed.items():
                name = name.replace(theirs, ours)
            own[name] = array
        return own
