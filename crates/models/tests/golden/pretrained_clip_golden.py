"""Makes pretrained/{clip,clip-first}/: tiny random CLIP models with what transformers computes.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.23.0 safetensors numpy
    venv/bin/python pretrained_clip_golden.py

A folder is what `save_pretrained` writes, with CLIP's tokenizer over a small vocabulary, and a processor_config.json as transformers 5
saves it (`clip`) or a preprocessor_config.json of the form that published ones have (`clip-first`). `clip-first` has the end mark 2 in its configuration, as models saved before transformers 4.31, so that texts are pooled
at their largest id. golden.safetensors has `ids.0 ..` (one text each), `pixels [batch, channels, height, width]`, `text_states.0 ..`,
`text_vectors [texts, size]`, `image_vectors [batch, size]` (both not normalised), `logits [batch, texts]`, and `attention.text.0.0 ..`
(text, layer) and `attention.image.0 ..` (layer) `[batch, heads, queries, keys]`, in float32 with eager attention; its metadata `golden` is
JSON with the texts and the versions. photo.png is an image, and labels.json the probabilities of labels for it, with a prompt, from file to
number: the image processor (Pillow's resizing), the tokenizer and the model.
"""

import json
import string
import zlib
from pathlib import Path

import numpy
import torch
import transformers
from PIL import Image
from pretrained_images_golden import redraw
from safetensors.torch import save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

FOLDER = Path(__file__).resolve().parent / "pretrained"
MERGES = ["a t</w>", "c at</w>", "d o", "do g</w>", "i s</w>", "t h", "th is</w>", "1 2"]
TEXTS = ["a cat", "A photo of   a DOG!", "this is the cat's 12th nap, isn't it?", "<odd> text?"]
NUMBERS = dict(image_mean=[0.48, 0.45, 0.4], image_std=[0.27, 0.26, 0.28], rescale_factor=1 / 255, do_convert_rgb=True)
TEXT = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, max_position_embeddings=40)
LABELS, PROMPT = ["cat", "dog", "12 things"], "this is a {}"
VISION = dict(hidden_size=20, num_hidden_layers=3, num_attention_heads=2, intermediate_size=28, image_size=21, patch_size=7)
CASES = {
    "clip": (dict(), dict(size={"shortest_edge": 21}, do_resize=True, crop_size={"height": 21, "width": 21}, do_center_crop=True,
                          resample=3, **NUMBERS)),
    "clip-first": (dict(hidden_act="gelu", layer_norm_eps=1e-6),
                   dict(size=21, do_resize=True, crop_size=21, do_center_crop=True, resample=3, **NUMBERS)),
}


def tokenizer():
    from tokenizers.pre_tokenizers import ByteLevel

    kept = set(string.ascii_lowercase + string.digits + string.punctuation)
    letters = [letter for letter in sorted(ByteLevel.alphabet()) if letter in kept]
    words = letters + [letter + "</w>" for letter in letters] + [merge.replace(" ", "") for merge in MERGES]
    words += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: i for i, word in enumerate(words)}
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in MERGES])


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name, (both, processor) in CASES.items():
        folder, words = FOLDER / name, tokenizer()
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        ids = dict(bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id, pad_token_id=words.eos_token_id)
        text = TEXT | both | dict(vocab_size=len(words)) | (ids | dict(eos_token_id=2) if name == "clip-first" else ids)
        config = transformers.CLIPConfig(text_config=text, vision_config=VISION | both, projection_dim=12)
        model = transformers.CLIPModel(config)
        redraw(model, generator)
        with torch.no_grad():
            model.logit_scale.fill_(1.7)
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        if name == "clip":
            transformers.CLIPProcessor(CLIPImageProcessorPil(**processor), words).save_pretrained(folder)
        else:
            (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")
        model = transformers.CLIPModel.from_pretrained(folder, attn_implementation="eager").eval()
        pixels = torch.randn(2, 3, VISION["image_size"], VISION["image_size"], generator=generator)
        arrays, vectors = {"pixels": pixels}, []
        with torch.no_grad():
            for i, text in enumerate(TEXTS):
                encoded = words(text, return_tensors="pt")
                seen = model.text_model(**encoded, output_attentions=True)
                vectors.append(model.get_text_features(**encoded).pooler_output)
                arrays |= {f"ids.{i}": encoded["input_ids"], f"text_states.{i}": seen.last_hidden_state}
                arrays |= {f"attention.text.{i}.{layer}": weights for layer, weights in enumerate(seen.attentions)}
            seen = model.vision_model(pixels, output_attentions=True)
            arrays |= {f"attention.image.{layer}": weights for layer, weights in enumerate(seen.attentions)}
            padded = words(TEXTS, return_tensors="pt", padding=True)
            output = model(**padded, pixel_values=pixels)
            arrays |= {"text_vectors": torch.cat(vectors), "logits": output.logits_per_image}
            arrays["image_vectors"] = model.get_image_features(pixels).pooler_output
        # 28 pixels wide when it is cut: the parts beside the middle differ.
        rows, columns = numpy.mgrid[0:29, 0:39]
        photo = numpy.stack([columns * 6, 255 - rows * 8, (rows * columns) % 200 + 20], axis=-1).astype(numpy.uint8)
        Image.fromarray(photo).save(folder / "photo.png")
        prepared = CLIPImageProcessorPil.from_pretrained(folder)(Image.open(folder / "photo.png"), return_tensors="pt")
        with torch.no_grad():
            prompts = words([PROMPT.replace("{}", label) for label in LABELS], return_tensors="pt", padding=True)
            chances = model(**prompts, **prepared).logits_per_image.softmax(-1)[0].tolist()
        labelled = {"prompt": PROMPT, "probabilities": dict(zip(LABELS, chances))}
        (folder / "labels.json").write_text(json.dumps(labelled, indent=2) + "\n")
        about = {"model": "CLIPModel", "texts": TEXTS, "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
        arrays = {key: array.contiguous().clone() for key, array in arrays.items()}
        save_file(arrays, folder / "golden.safetensors", metadata={"golden": json.dumps(about)})
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{name:20} {size:7} bytes, logits {[round(x, 3) for x in output.logits_per_image[0].tolist()]}")


if __name__ == "__main__":
    main()
