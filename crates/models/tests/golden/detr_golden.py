"""Golden numbers of DETR: predictions, masks, loss and gradients by Hugging Face's transformers, and assignments by scipy.

Run in this folder: `python detr_golden.py`, which writes detr.safetensors and assignment.json (transformers 5.23, scipy 1.17).

The backbone is made of blocks of images_golden.py's residual networks, with batch norms set to running statistics. Everything behind it is `DetrForSegmentation`, its matcher and its
loss, called with the weights that the Rust side draws. Predictions after each layer of the decoder are those of the original code: the
norm of a layer's states goes to the heads alone (with `auxiliary_loss` transformers 5.23 also hands it to the next layer).
"""

import json
import pathlib
import sys

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from transformers import DetrConfig, DetrForSegmentation, ResNetConfig
from transformers.loss.loss_for_object_detection import HungarianMatcher, ImageLoss

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../../nn/tests/golden"))
from golden_file import GoldenFile, values  # noqa: E402

WEIGHTS = {"loss_ce": 1, "loss_bbox": 5, "loss_giou": 2, "loss_mask": 1, "loss_dice": 1}


class Maps(nn.Module):
    """In place of the backbone: gives maps that are computed outside."""

    def __init__(self, channels):
        super().__init__()
        self.intermediate_channel_sizes, self.maps = channels, None

    def forward(self, pixels, mask):
        return [(m, torch.ones(m.shape[0], *m.shape[2:], dtype=torch.bool)) for m in self.maps]


def backbone(draw, x, channels, stages):
    def normed(name, x, outputs, kernel, stride):
        w = draw(name + ".conv.weight", outputs, x.shape[1], kernel, kernel, scale=1.0)
        x = F.conv2d(x, w, stride=stride, padding=kernel // 2)
        gamma, beta = draw(name + ".norm.gamma", outputs, scale=1.0), draw(name + ".norm.beta", outputs)
        mean, variance = draw(name + ".norm.running_mean", outputs), draw(name + ".norm.running_var", outputs)
        return F.batch_norm(x, mean.detach(), variance.detach().abs() + 0.5, gamma, beta, False, 0.0, 1e-5)

    x, maps = F.relu(normed("backbone.stem", x, channels, 3, 2)), []
    for stage in range(stages):
        outputs, stride, name = channels << stage, 2 if stage else 1, f"backbone.stages.{stage}.0"
        skip = normed(name + ".skip", x, outputs, 1, stride) if stage else x
        y = F.relu(normed(name + ".branch.0", x, outputs, 3, stride))
        x = F.relu(normed(name + ".branch.1", y, outputs, 3, 1) + skip)
        maps.append(x)
    return maps


def weights(draw, model, sizes):
    """The model's parameters by their names there, drawn by their names and in their layouts here."""
    d, f, heads, classes, features = (sizes[key] for key in ("d", "f", "heads", "classes", "features"))
    found = {}

    def linear(there, here, inputs, outputs):
        found[there + ".weight"] = draw(here + ".weight", inputs, outputs).T
        found[there + ".bias"] = draw(here + ".bias", outputs)

    def norm(there, here, names=("weight", "bias"), size=d):
        for part, name in zip(("weight", "bias"), names):
            found[f"{there}.{part}"] = draw(f"{here}.{name}", size, scale=1.0)

    def conv(there, here, inputs, outputs, kernel):
        found[there + ".weight"] = draw(here + ".weight", outputs, inputs, kernel, kernel)
        found[there + ".bias"] = draw(here + ".bias", outputs)

    linear("input", "input_projection", features, d)
    found["detr.model.input_projection.weight"] = found.pop("input.weight")[:, :, None, None]
    found["detr.model.input_projection.bias"] = found.pop("input.bias")
    found["detr.model.query_position_embeddings.weight"] = draw("query_positions", sizes["queries"], d, scale=1.0)
    for side, layers in (("encoder", sizes["encoder_layers"]), ("decoder", sizes["decoder_layers"])):
        for layer in range(layers):
            there, here = f"detr.model.{side}.layers.{layer}", f"{side}.layers.{layer}"
            joint = f"{here}.attention.projection.Fused.query_key_value"
            w, b = draw(joint + ".weight", d, 3 * d).T.split(d), draw(joint + ".bias", 3 * d).split(d)
            for part, w, b in zip("qkv", w, b):
                found[f"{there}.self_attn.{part}_proj.weight"], found[f"{there}.self_attn.{part}_proj.bias"] = w, b
            linear(there + ".self_attn.o_proj", here + ".attention.output", d, d)
            norm(there + ".self_attn_layer_norm", here + ".attention_block.norm")
            if side == "decoder":
                for part, name in (("q", "query"), ("k", "key"), ("v", "value")):
                    linear(f"{there}.encoder_attn.{part}_proj", f"{here}.cross_attention.projection.Separate.{name}", d, d)
                linear(there + ".encoder_attn.o_proj", here + ".cross_attention.output", d, d)
                norm(there + ".encoder_attn_layer_norm", here + ".cross_block.norm")
            linear(there + ".mlp.fc1", here + ".feed_forward.inner", d, f)
            linear(there + ".mlp.fc2", here + ".feed_forward.outer", f, d)
            norm(there + ".final_layer_norm", here + ".feed_forward_block.norm")
    norm("detr.model.decoder.layernorm", "decoder_norm")
    linear("detr.class_labels_classifier", "class_head", d, classes + 1)
    for layer, outputs in enumerate((d, d, 4)):
        linear(f"detr.bbox_predictor.layers.{layer}", f"box_head.{layer}", d, outputs)
    linear("bbox_attention.q_proj", "mask_head.query", d, d)
    linear("bbox_attention.k_proj", "mask_head.key", d, d)
    steps = [("conv1", d + heads, d + heads), ("conv2", d + heads, d // 2)]
    steps += [(f"fpn_stages.{i}.refine", d >> (i + 1), d >> (i + 2)) for i in range(3)]
    for step, (name, inputs, outputs) in enumerate(steps):
        conv(f"mask_head.{name}.conv", f"mask_head.steps.{step}.conv", inputs, outputs, 3)
        norm(f"mask_head.{name}.norm", f"mask_head.steps.{step}.norm", ("gamma", "beta"), outputs)
    for i in range(3):
        conv(f"mask_head.fpn_stages.{i}.fpn_adapter", f"mask_head.adapters.{i}", features >> (i + 1), d >> (i + 1), 1)
    conv("mask_head.output_conv", "mask_head.output", d // 16, 1, 3)
    assert set(found) == {name for name, _ in model.named_parameters()}, set(found) ^ {n for n, _ in model.named_parameters()}
    return found


def targets(case, counts, classes, height, width, dtype):
    """As many objects as `counts` says; the Rust side draws the same."""
    of_image = []
    for image, count in enumerate(counts):
        label = [int((x + 1) / 2 * classes) for x in values(f"{case}/labels.{image}", (count,), 1.0)]
        boxes = torch.tensor(values(f"{case}/boxes.{image}", (count, 4), 0.125), dtype=dtype)
        boxes = boxes + torch.tensor([0.5, 0.5, 0.25, 0.25], dtype=dtype)
        masks = torch.tensor(values(f"{case}/masks.{image}", (count, height, width), 1.0) > 0.5)
        of_image.append({"class_labels": torch.tensor(label, dtype=torch.int64), "boxes": boxes, "masks": masks})
    return of_image


def case(file, name, counts, size, **sizes):
    height, width = size
    sizes["features"] = sizes["channels"] << 3
    config = DetrConfig(
        backbone_config=ResNetConfig(
            embedding_size=4, hidden_sizes=[4, 4, 4, 4], depths=[1] * 4, layer_type="basic",
            out_features=["stage1", "stage2", "stage3", "stage4"],
        ),
        num_queries=sizes["queries"], num_labels=sizes["classes"], d_model=sizes["d"],
        encoder_layers=sizes["encoder_layers"], decoder_layers=sizes["decoder_layers"],
        encoder_ffn_dim=sizes["f"], decoder_ffn_dim=sizes["f"],
        encoder_attention_heads=sizes["heads"], decoder_attention_heads=sizes["heads"], dropout=0.0,
        attn_implementation="eager",
    )
    model = DetrForSegmentation(config)
    channels = [sizes["channels"] << stage for stage in range(4)]
    maps = Maps(channels)
    model.detr.model.backbone = maps
    model.detr.model.input_projection = nn.Conv2d(sizes["features"], sizes["d"], 1)
    model.mask_head = type(model.mask_head)(
        input_channels=sizes["d"] + sizes["heads"], fpn_channels=channels[::-1][1:], hidden_size=sizes["d"]
    )
    # The first of four maps is the largest; the original leaves out that of the last stage.
    original = maps.forward

    def compute(draw):
        dtype = draw.dtype
        images = draw("images", len(counts), 3, height, width, scale=1.0)
        maps.maps = backbone(draw, images, sizes["channels"], 4)
        leaves = weights(draw, model.to(dtype), sizes)
        run = functional_call(
            model, leaves, (images,), {"output_hidden_states": True, "output_attentions": True}
        )
        outputs = {"masks": run.pred_masks}
        layers = []
        for layer, states in enumerate(run.decoder_hidden_states[1:]):
            if layer + 1 < sizes["decoder_layers"]:  # the last ones are given with their norm
                norm = (leaves[f"detr.model.decoder.layernorm.{part}"] for part in ("weight", "bias"))
                states = F.layer_norm(states, (sizes["d"],), *norm)
            logits = F.linear(states, *(leaves[f"detr.class_labels_classifier.{part}"] for part in ("weight", "bias")))
            box = states
            for i in range(3):
                box = F.linear(box, *(leaves[f"detr.bbox_predictor.layers.{i}.{part}"] for part in ("weight", "bias")))
                box = F.relu(box) if i < 2 else box.sigmoid()
            layers.append({"logits": logits, "pred_boxes": box})
            outputs[f"logits.{layer}"], outputs[f"boxes.{layer}"] = logits, box
            outputs[f"cross.{layer}"] = run.cross_attentions[layer]
        assert torch.allclose(layers[-1]["logits"], run.logits) and torch.allclose(layers[-1]["pred_boxes"], run.pred_boxes)
        for layer, weights_ in enumerate(run.encoder_attentions):
            outputs[f"encoder.{layer}"] = weights_
        matcher = HungarianMatcher(class_cost=1, bbox_cost=5, giou_cost=2)
        criterion = ImageLoss(matcher, sizes["classes"], 0.1, ["labels", "boxes", "masks"]).to(dtype)
        found = {**layers[-1], "pred_masks": run.pred_masks, "auxiliary_outputs": layers[:-1]}
        losses = criterion(found, targets(name, counts, sizes["classes"], height, width, dtype))
        total = sum(WEIGHTS[key.rsplit("_", 1)[0] if key[-1].isdigit() else key] * value for key, value in losses.items())
        outputs.update({key: losses[key].reshape(1) for key in WEIGHTS}, total=total.reshape(1))
        return total, outputs

    file.case(name, compute, kind="detr", counts=list(counts), size=[height, width], **sizes)


def main():
    torch.set_num_threads(1)
    file = GoldenFile()
    sizes = dict(d=16, f=24, heads=8, encoder_layers=2, decoder_layers=2, channels=4)
    case(file, "objects", (2, 0, 3), (40, 48), queries=5, classes=3, **sizes)
    case(file, "crowded", (4, 1), (33, 32), queries=3, classes=2, **sizes)
    file.save(HERE / "detr.safetensors")

    random, cases = np.random.default_rng(1), []
    for rows, columns in [(1, 1), (1, 5), (5, 1), (3, 3), (4, 7), (7, 4), (20, 20), (10, 40), (0, 3), (3, 0)]:
        for kind in ("real", "negative", "ties"):
            costs = random.normal(size=(rows, columns)) * 10
            costs = costs - 20 if kind == "negative" else np.round(costs / 8) if kind == "ties" else costs
            pairs = [[int(row), int(column)] for row, column in zip(*linear_sum_assignment(costs))]
            least = sum(costs[row, column] for row, column in pairs)
            # Of several cheapest assignments scipy gives one, which need not be ours.
            cases.append(dict(rows=rows, columns=columns, costs=costs.ravel().tolist(), least=float(least),
                              pairs=None if kind == "ties" else pairs))
    (HERE / "assignment.json").write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main()
