"""Makes pretrained/{vit,vit-lists,deit,deit-classes,resnet,resnet-bottleneck}/: tiny random classifiers of images with what transformers
computes.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.23.0 safetensors numpy
    venv/bin/python pretrained_images_golden.py [CASE ..]      these alone
    venv/bin/python pretrained_images_golden.py --photo [CASE ..]      of folders that are there, only photo.png and labels.json

A folder is what `save_pretrained` writes, with a preprocessor_config.json of the forms that published ones have. golden.safetensors has
`pixels [batch, channels, height, width]`, `logits [batch, classes]` and, of Transformers, `attention.0 ..`
`[batch, heads, queries, keys]`, in float32 with eager attention; its metadata `golden` is JSON with the versions.
photo.png is an image, and labels.json its `logits`, and the score of each label by the pipeline of transformers: from file to number, by the
image processor (Pillow's resizing), the model, and softmax or sigmoid.
"""

import json
import math
import sys
import zlib
from pathlib import Path

import numpy
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file

FOLDER = Path(__file__).resolve().parent / "pretrained"
LABELS = dict(id2label={i: name for i, name in enumerate(["cat", "dog", "bird", "fish", "frog"])})
VIT = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, image_size=16, patch_size=4, **LABELS)
NUMBERS = dict(image_mean=[0.5, 0.4, 0.3], image_std=[0.5, 0.25, 0.2], rescale_factor=1 / 255)
CASES = {
    "vit": ("ViTForImageClassification", VIT | dict(qkv_bias=False),
            dict(size={"height": 16, "width": 16}, do_resize=True, resample=2, **NUMBERS)),
    # One class, sizes as lists, and a preprocessor in its first form that leaves out most.
    "vit-lists": ("ViTForImageClassification", VIT | dict(image_size=[16, 16], patch_size=[4, 4], id2label={0: "good"}),
                  dict(size=16, feature_extractor_type="ViTFeatureExtractor")),
    "deit": ("DeiTForImageClassificationWithTeacher", VIT,
             dict(size={"height": 20, "width": 20}, do_center_crop=True, crop_size={"height": 16, "width": 16}, resample=3, **NUMBERS)),
    # Scores from the class token alone, each class with its own probability.
    "deit-classes": ("DeiTForImageClassification", VIT | dict(problem_type="multi_label_classification"),
                     dict(size=20, crop_size=16, feature_extractor_type="DeiTFeatureExtractor")),
    "resnet": ("ResNetForImageClassification",
               dict(embedding_size=4, hidden_sizes=[4, 8, 16, 32], depths=[2, 2, 2, 2], layer_type="basic", **LABELS),
               dict(size={"shortest_edge": 40}, crop_pct=0.875, resample=3, **NUMBERS)),
    "resnet-bottleneck": ("ResNetForImageClassification",
                          dict(embedding_size=2, hidden_sizes=[8, 16, 32, 64], depths=[3, 4, 6, 3], layer_type="bottleneck", **LABELS),
                          dict(size=48, resample=2, **NUMBERS)),
}
SIDE = {"resnet": 40, "resnet-bottleneck": 48}


def redraw(model, generator):
    """Draws every number, so that norms, biases and running statistics matter."""
    normal = lambda tensor, mean, deviation: tensor.copy_(mean + deviation * torch.randn(tensor.shape, generator=generator))
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("running_var"):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
            elif not tensor.is_floating_point():
                continue
            elif "norm" in name and name.endswith("weight"):
                normal(tensor, 1.0, 0.25)
            elif tensor.dim() > 1 and name.endswith("weight"):
                normal(tensor, 0.0, 1.5 / math.sqrt(tensor[0].numel()))
            else:
                normal(tensor, 0.0, 0.2)


def make(name):
    kind, config, processor = CASES[name]
    kind, folder, side = getattr(transformers, kind), FOLDER / name, SIDE.get(name, 16)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    model = kind(kind.config_class(**config))
    redraw(model, generator)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")
    looks = {} if name.startswith("resnet") else dict(attn_implementation="eager")
    model = kind.from_pretrained(folder, **looks).eval()
    pixels = torch.randn(2, 3, side, side, generator=generator)
    with torch.no_grad():
        output = model(pixels, output_attentions=True) if looks else model(pixels)
    arrays = {"pixels": pixels, "logits": output.logits}
    arrays |= {f"attention.{i}": weights for i, weights in enumerate(output.get("attentions") or [])}
    about = {"model": kind.__name__, "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    arrays = {key: array.contiguous().clone() for key, array in arrays.items()}
    save_file(arrays, folder / "golden.safetensors", metadata={"golden": json.dumps(about)})
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name:20} {size:7} bytes, logits {[round(x, 3) for x in output.logits[0].tolist()]}")


def photo(name):
    folder = FOLDER / name
    # Wider than high, so that stretching differs from cutting; Pillow 13 resizes it in the order of 12 (across, then down).
    rows, columns = numpy.mgrid[0:29, 0:39]
    pixels = numpy.stack([columns * 6, 255 - rows * 8, (rows * columns) % 200 + 20], axis=-1).astype(numpy.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    model = getattr(transformers, CASES[name][0]).from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(**processor(Image.open(folder / "photo.png"), return_tensors="pt")).logits[0].tolist()
    classify = transformers.pipeline("image-classification", model=model, image_processor=processor)
    scores = {entry["label"]: entry["score"] for entry in classify(str(folder / "photo.png"))}
    found = {"logits": logits, "scores": scores}
    (folder / "labels.json").write_text(json.dumps(found, indent=2) + "\n")
    print(f"{name:20} {type(processor).__name__} {found}")


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    names = [name for name in sys.argv[1:] if name != "--photo"] or CASES
    for name in names:
        if "--photo" not in sys.argv:
            make(name)
        photo(name)


if __name__ == "__main__":
    main()
