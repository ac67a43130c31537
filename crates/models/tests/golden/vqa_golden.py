"""Golden numbers of the models that answer questions about images: scores, weights of the regions, loss and gradients, in PyTorch.

Run in this folder: `python vqa_golden.py`, which writes vqa.safetensors.

- bottom-up: Anderson et al. 2018, section 3.3, and Teney et al. 2018, section 3 (one look, no counts); with a second look that knows
  what the first one read, and the sum of sigmoids of the scores, as crates/models/src/image/vqa.rs writes them
- stacked: Yang et al. 2016, section 3.3
- question-only: the same answers without the image

The regions are the cells of a residual network's last map (He et al. 2015, basic blocks, batch statistics) with their place. The loss is
PyTorch's binary_cross_entropy_with_logits with soft targets, the mean over questions of the sum over answers. Layouts are those of
regard: x W with W [inputs, outputs]; gates of the LSTM i | f | g | o.
"""

import math
import pathlib
import sys

import torch
from torch.nn import functional as F

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../../nn/tests/golden"))
from golden_file import GoldenFile  # noqa: E402

VOCABULARY, EMBEDDING, HIDDEN, DIMENSION, ANSWERS, CHANNELS = 9, 5, 6, 7, 4, 4
SHAPE = (2, 3, 20, 12)
END = 2
QUESTIONS = [[5, 7, 4], [6], [8, 5, 5, 3]]
ABOUT = [0, 1, 0]
TARGETS = [[1.0, 0.0, 1 / 3, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 2 / 3, 0.0, 1.0]]


class Net:
    def __init__(self, draw):
        self.draw = draw

    def linear(self, name, x, outputs, bias=True):
        y = x @ self.draw(name + ".weight", x.shape[-1], outputs)
        return y + self.draw(name + ".bias", outputs) if bias else y

    def gated(self, name, x, outputs):
        return torch.tanh(self.linear(name + ".value", x, outputs)) * torch.sigmoid(self.linear(name + ".gate", x, outputs))

    def normed(self, name, x, outputs, kernel, stride=1):
        w = self.draw(name + ".conv.weight", outputs, x.shape[1], kernel, kernel)
        x = F.conv2d(x, w, stride=stride, padding=kernel // 2)
        gamma, beta = self.draw(name + ".norm.gamma", outputs, scale=1.0), self.draw(name + ".norm.beta", outputs)
        for running in ("mean", "var"):
            self.draw(f"{name}.norm.running_{running}", outputs)
        return F.batch_norm(x, None, None, gamma, beta, True, 0.0, 1e-5)

    def regions(self, name):
        images = self.draw("images", *SHAPE, scale=2.0)
        x = F.relu(self.normed(name + ".stem", images, CHANNELS, 3, 2))
        for stage in range(3):
            outputs, stride, block = CHANNELS << stage, 2 if stage else 1, f"{name}.stages.{stage}.0"
            y = F.relu(self.normed(block + ".branch.0", x, outputs, 3, stride))
            y = self.normed(block + ".branch.1", y, outputs, 3)
            skip = self.normed(block + ".skip", x, outputs, 1, stride) if stage else x
            x = F.relu(y + skip)
        batch, _, rows, columns = x.shape
        axis = lambda count: (torch.arange(count, dtype=x.dtype) * 2 + 1) / count - 1
        down, across = torch.meshgrid(axis(rows), axis(columns), indexing="ij")
        at = [across.flatten(), down.flatten()]
        place = at + [wave(math.pi * share * z) for share in (0.5, 1.0) for z in at for wave in (torch.sin, torch.cos)]
        place = torch.stack(place, 1).expand(batch, -1, -1)
        return torch.cat([x.flatten(2).transpose(1, 2), place], 2)

    def question(self, ids):
        table = self.draw("embedding.weight", VOCABULARY, EMBEDDING)
        w = self.draw("question.layers.0.input.weight", EMBEDDING, 4 * HIDDEN, scale=2.0)
        b = self.draw("question.layers.0.input.bias", 4 * HIDDEN)
        u = self.draw("question.layers.0.recurrent", HIDDEN, 4 * HIDDEN, scale=1.0)
        module = torch.nn.LSTM(EMBEDDING, HIDDEN, dtype=table.dtype)
        weights = {"weight_ih_l0": w.T, "weight_hh_l0": u.T, "bias_ih_l0": b, "bias_hh_l0": 0 * b}
        _, (h, _) = torch.func.functional_call(module, weights, (table[torch.tensor(ids + [END])],))
        return h[0]


def bottom_up(net, q, looks, counts):
    name = "answering.BottomUp"
    v = net.regions(name + ".backbone")[ABOUT]
    asked, maps = [q], {}
    for k in range(looks):
        question = torch.cat(asked, 1)[:, None].expand(-1, v.shape[1], -1)
        hidden = net.gated(f"{name}.looks.{k}.joint", torch.cat([v, question], 2), DIMENSION)
        a = hidden @ net.draw(f"{name}.looks.{k}.vector", DIMENSION, scale=1.0)
        alpha = torch.softmax(a, 1)
        maps[f"look.{k}"] = alpha
        context = (alpha[:, None] @ v)[:, 0]
        asked.append(context)
    read = [context]
    if counts:
        read.append(torch.sigmoid(a + net.draw(name + ".counts", 1)).sum(1, keepdim=True))
    h = net.gated(name + ".head.question", q, HIDDEN) * net.gated(name + ".head.image", torch.cat(read, 1), HIDDEN)
    return net.linear(name + ".head.output", net.gated(name + ".head.joint", h, HIDDEN), ANSWERS, False), maps


def stacked(net, q, looks):
    name = "answering.Stacked"
    v = torch.tanh(net.linear(name + ".region", net.regions(name + ".backbone"), HIDDEN))[ABOUT]
    u, maps = q, {}
    for k in range(looks):
        part = f"{name}.looks.{k}."
        hidden = torch.tanh(net.linear(part + "key", v, DIMENSION, False) + net.linear(part + "query", u, DIMENSION)[:, None])
        alpha = torch.softmax(hidden @ net.draw(part + "vector", DIMENSION, scale=1.0), 1)
        maps[f"look.{k}"] = alpha
        u = (alpha[:, None] @ v)[:, 0] + u
    return net.linear(name + ".output", u, ANSWERS), maps


def question_only(net, q):
    name = "answering.QuestionOnly"
    h = net.gated(name + ".joint", net.gated(name + ".question", q, HIDDEN), HIDDEN)
    return net.linear(name + ".output", h, ANSWERS, False), {}


def model(answer, *sizes):
    def compute(draw):
        net = Net(draw)
        q = torch.stack([net.question(ids) for ids in QUESTIONS])
        logits, maps = answer(net, q, *sizes)
        targets = torch.tensor(TARGETS, dtype=logits.dtype)
        loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(QUESTIONS)
        return loss, {"logits": logits, **maps}

    return compute


golden = GoldenFile()
for looks, counts in ((1, False), (2, True)):
    golden.case(f"bottom-up {looks} {counts}", model(bottom_up, looks, counts), kind="vqa", attention="bottom-up", looks=looks,
                counts=counts)
for looks in (1, 2):
    golden.case(f"stacked {looks}", model(stacked, looks), kind="vqa", attention="stacked", looks=looks)
golden.case("question-only", model(question_only), kind="vqa", attention="question-only")
golden.save(HERE / "vqa.safetensors")
