"""Makes pretrained/{detr,detr-timm,detr-dilation}/: tiny random DETR models with what transformers computes.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.23.0 safetensors numpy pillow
    venv/bin/python pretrained_detr_golden.py

`detr` is what `save_pretrained` writes, with the ResNet of transformers. The two others have the form of the published folders, whose
backbone is timm's: the same networks, their weights renamed to the names of timm (as in its `resnet.py`), and a configuration with
`use_timm_backbone`. `detr-timm` has masks (DetrForSegmentation). In `detr-dilation` the last stage has dilation in place of its stride, as
timm makes it for `output_stride=16`: none in the first block, 2 in the others. golden.safetensors has `pixels`, `logits`, `boxes`,
`masks` and the weights `encoder.0 ..`, `decoder.0 ..`, `cross.0 ..` `[batch, heads, queries, keys]`, in float32 with eager attention; its
metadata `golden` is JSON with the versions. photo.png is an image, and objects.json what is found in it, from file to box: the image
processor (Pillow's resizing), the model and `post_process_object_detection`.
"""

import json
import re
import zlib
from pathlib import Path

import numpy
import torch
import transformers
from PIL import Image
from pretrained_images_golden import redraw
from safetensors.torch import load_file, save_file
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

FOLDER = Path(__file__).resolve().parent / "pretrained"
LABELS = dict(id2label={0: "N/A", 1: "person", 2: "bicycle", 3: "N/A"})
NUMBERS = dict(image_mean=[0.48, 0.45, 0.4], image_std=[0.27, 0.26, 0.28], do_resize=True, do_normalize=True)
BASIC = dict(embedding_size=2, hidden_sizes=[2, 4, 8, 16], depths=[2, 2, 2, 2], layer_type="basic")
BOTTLENECK = dict(embedding_size=2, hidden_sizes=[8, 16, 32, 64], depths=[3, 4, 6, 3], layer_type="bottleneck")
SMALL = dict(d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
             encoder_ffn_dim=20, decoder_ffn_dim=20, num_queries=5)
CASES = {
    "detr": ("DetrForObjectDetection", BOTTLENECK, SMALL,
             dict(size={"shortest_edge": 64, "longest_edge": 88}, resample=2, rescale_factor=1 / 255, **NUMBERS)),
    "detr-timm": ("DetrForSegmentation", BASIC, SMALL | dict(d_model=32, encoder_attention_heads=8, decoder_attention_heads=8),
                  dict(size=64, max_size=80, feature_extractor_type="DetrFeatureExtractor", format="coco_panoptic", **NUMBERS)),
    "detr-dilation": ("DetrForObjectDetection", BOTTLENECK, SMALL,
                      dict(size={"height": 70, "width": 90}, resample=2, rescale_factor=1 / 255, **NUMBERS)),
}
PIXELS = (2, 3, 67, 93)
THRESHOLD = 0.3


def dilate(model):
    stage = model.model.backbone.model.encoder.stages[3]
    for block, layer in enumerate(stage.layers):
        for convolution in [part for part in layer.modules() if isinstance(part, torch.nn.Conv2d)]:
            convolution.stride = (1, 1)
            if block > 0 and convolution.kernel_size == (3, 3):
                convolution.dilation = convolution.padding = (2, 2)


def timm_names(folder, depth, dilation):
    renamed = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        name = name.replace("embedder.embedder.convolution", "conv1").replace("embedder.embedder.normalization", "bn1")
        name = re.sub(r"encoder\.stages\.(\d)\.layers", lambda found: f"layer{int(found[1]) + 1}", name)
        for old, new in [("convolution", "conv"), ("normalization", "bn")]:
            name = re.sub(rf"layer\.(\d)\.{old}", lambda found: f"{new}{int(found[1]) + 1}", name)
            name = name.replace(f"shortcut.{old}", f"downsample.{0 if new == 'conv' else 1}")
        renamed[name] = tensor
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= dict(backbone_config=None, backbone=f"resnet{depth}", use_timm_backbone=True, dilation=dilation)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name, (kind, backbone, sizes, processor) in CASES.items():
        kind, folder = getattr(transformers, kind), FOLDER / name
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        backbone = transformers.ResNetConfig(out_features=["stage1", "stage2", "stage3", "stage4"], **backbone)
        config = transformers.DetrConfig(backbone_config=backbone, use_timm_backbone=False, attn_implementation="eager", **sizes, **LABELS)
        model = kind(config).eval()
        redraw(model, generator)
        model.save_pretrained(folder)
        if name == "detr-dilation":
            dilate(model)
        if name != "detr":
            timm_names(folder, 18 if name == "detr-timm" else 50, name == "detr-dilation")
        (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")
        pixels = torch.randn(PIXELS, generator=generator)
        with torch.no_grad():
            found = model(pixels, output_attentions=True)
        arrays = {"pixels": pixels, "logits": found.logits, "boxes": found.pred_boxes}
        for here, weights in (("encoder", found.encoder_attentions), ("decoder", found.decoder_attentions), ("cross", found.cross_attentions)):
            arrays |= {f"{here}.{layer}": of_layer for layer, of_layer in enumerate(weights)}
        if "pred_masks" in found:
            arrays["masks"] = found.pred_masks

        rows, columns = numpy.mgrid[0:43, 0:71]
        photo = numpy.stack([columns * 3, 255 - rows * 5, (rows * columns) % 200 + 20], axis=-1).astype(numpy.uint8)
        Image.fromarray(photo).save(folder / "photo.png")
        prepare = DetrImageProcessorPil.from_pretrained(folder)
        prepared = prepare(Image.open(folder / "photo.png"), return_tensors="pt")
        with torch.no_grad():
            found = model(**prepared)
        kept = prepare.post_process_object_detection(found, threshold=THRESHOLD, target_sizes=[photo.shape[:2]])[0]
        objects = [{"label": config.id2label[label], "probability": score, "corners": box}
                   for score, label, box in zip(*(kept[key].tolist() for key in ("scores", "labels", "boxes")))]
        about = {"threshold": THRESHOLD, "size": list(prepared["pixel_values"].shape[2:]), "objects": objects}
        (folder / "objects.json").write_text(json.dumps(about, indent=2) + "\n")

        about = {"model": kind.__name__, "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
        arrays = {key: array.contiguous().clone() for key, array in arrays.items()}
        save_file(arrays, folder / "golden.safetensors", metadata={"golden": json.dumps(about)})
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{name:16} {size:7} bytes, {len(objects)} objects, logits {[round(x, 3) for x in arrays['logits'][0, 0].tolist()]}")


if __name__ == "__main__":
    main()
