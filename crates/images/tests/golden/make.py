"""Writes the fixtures of the tests: images in every stored form, and what Pillow 12.2 and pycocotools 2.0.11 make of them.

    pip install pillow==12.2.0 numpy==2.4.6 pycocotools==2.0.11
    python3 crates/images/tests/golden/make.py

Run from anywhere; the results stand beside this script.
"""

import json
import pathlib
import struct

import numpy as np
from PIL import Image, ImageOps, ImageEnhance
from pycocotools import mask as coco

here = pathlib.Path(__file__).parent
rng = np.random.default_rng(14)


def picture(height, width):
    """Colours that change slowly, so that lossy formats keep them, with an edge and no symmetry."""
    y, x = np.mgrid[0:height, 0:width]
    red = 255 * x / max(width - 1, 1)
    green = 255 * y / max(height - 1, 1)
    blue = np.where(x + 2 * y > width, 200, 40)
    return np.stack([red, green, blue], -1).astype(np.uint8)


# Images in every stored form.
colour = Image.fromarray(picture(24, 40))
grey = colour.convert("L")
alpha = colour.copy()
alpha.putalpha(Image.fromarray((np.arange(24 * 40).reshape(24, 40) * 255 // 959).astype(np.uint8)))
colour.save(here / "colour.png")
grey.save(here / "grey.png")
colour.quantize(16).save(here / "palette.png")
alpha.save(here / "alpha.png")
alpha.convert("LA").save(here / "grey-alpha.png")
wide = (np.asarray(grey).astype(np.uint16) * 257).astype(np.int32) + 100
Image.fromarray(np.clip(wide, 0, 65535).astype(np.uint16)).save(here / "grey-16.png")
colour.save(here / "colour.jpg", quality=92)
colour.save(here / "progressive.jpg", quality=92, progressive=True)
grey.save(here / "grey.jpg", quality=92)
colour.convert("CMYK").save(here / "cmyk.jpg", quality=92)
colour.save(here / "lossy.webp", quality=92)
colour.save(here / "lossless.webp", lossless=True)
alpha.save(here / "alpha.webp", lossless=True, exact=True)

# One picture stored in the eight orientations of EXIF: each must come out as the first.
upright = colour.resize((16, 8))
undo = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
upright.save(here / "upright.png")
for orientation, way in undo.items():
    stored = upright if way is None else upright.transpose(way)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = here / f"orientation-{orientation}.jpg"
    stored.save(path, quality=95, subsampling=0, exif=exif)
    turned = np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB")).astype(int)
    assert turned.shape == (8, 16, 3) and np.abs(turned - np.asarray(upright)).mean() < 8, orientation

# Resizing, of noise in which every weight counts. Pillow 13 resizes some sizes down before across, and rounds in between.
noise = {
    "colour": Image.fromarray(rng.integers(0, 256, (23, 31, 3), dtype=np.uint8)),
    "grey": Image.fromarray(rng.integers(0, 256, (17, 9), dtype=np.uint8)),
}
resized = []
for name, image in noise.items():
    image.save(here / f"noise-{name}.png")
    for height, width in [(7, 5), (23, 12), (11, 31), (46, 33), (1, 1), (1, 40), (37, 3), (24, 32)]:
        for resampling in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC):
            pixels = np.asarray(image.resize((width, height), resampling))
            size = {"height": height, "width": width, "filter": resampling.name.lower()}
            resized.append({"from": f"noise-{name}.png", **size, "pixels": pixels.tobytes().hex()})
rules = {
    "equalize": ImageOps.equalize(noise["colour"].resize((64, 64))),
    "posterize": ImageOps.posterize(noise["colour"], 4),
    "grey": noise["colour"].convert("L"),
}
rules = {name: np.asarray(image).tobytes().hex() for name, image in rules.items()}
noise["colour"].resize((64, 64)).save(here / "noise-64.png")

# Masks: polygons to runs, runs to packed text.
polygons = []
for case in range(40):
    height, width = (int(n) for n in rng.integers(1, 40, 2))
    shapes = []
    for _ in range(int(rng.integers(1, 4))):
        corners = rng.uniform(-1, 1, (int(rng.integers(3, 9)), 2)) * 0.6 + 0.5
        corners = np.clip(corners, -0.9 / max(height, width), 1 + 0.9 / max(height, width)) * [width, height]
        if case % 3 == 0:
            corners = corners.round()
        if case % 5 == 0:
            corners = np.concatenate([corners, corners[-1:]])
        shapes.append(corners.round(2).ravel().tolist())
    packed = coco.merge(coco.frPyObjects(shapes, height, width))
    pixels = coco.decode(packed)
    flat, runs, value, run = pixels.ravel(order="F"), [], 0, 0
    for pixel in flat:
        if pixel != value:
            runs, value, run = runs + [run], pixel, 0
        run += 1
    runs.append(run)
    polygons.append(
        {"height": height, "width": width, "polygons": shapes, "runs": runs, "packed": packed["counts"].decode()}
    )

(here / "golden.json").write_text(json.dumps({"resized": resized, "rules": rules, "polygons": polygons}) + "\n")

# A PNG whose header states 10^9 pixels, right but for its pixels.
import zlib


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


header = struct.pack(">IIBBBBB", 40000, 25000, 8, 2, 0, 0, 0)
(here / "lying.png").write_bytes(
    b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
)
