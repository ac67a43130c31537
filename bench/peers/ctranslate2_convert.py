#!/usr/bin/env python3
"""Writes a Transformer of `regard train` as a CTranslate2 model, f32.

    python3 bench/peers/ctranslate2_convert.py runs/transformer-small/model.safetensors FOLDER

The tokens of the CTranslate2 model are regard's ids as text ("17"), so that both read the same sentences whatever the
tokenizer. Needs ctranslate2, safetensors and numpy.
"""

import argparse
import json
import sys
from pathlib import Path

import ctranslate2
import numpy
from ctranslate2.specs import common_spec
from safetensors import safe_open

PADDING, START, END, UNKNOWN = 0, 1, 2, 3
ACTIVATIONS = {
    "relu": common_spec.Activation.RELU, "gelu": common_spec.Activation.GELU, "swiglu": common_spec.Activation.SWISH,
}


def described(model):
    """The kind, the entries of both vocabularies and the configuration of a file's `regard.model`, of former versions too."""
    if "config" in model:
        return model["kind"], [model["sizes"][side]["size"] for side in ("source", "target")], model["config"]
    sizes = [model[f"{side}_vocabulary"] for side in ("source", "target")]
    if model["kind"] != "transformer" or model["layer"]["position"] != "none":
        return None, sizes, model
    layer = model["layer"]
    layer["d_model"] = layer["model_size"]
    norm = {"norm": layer["norm"]["kind"], "norm_epsilon": layer["norm"]["epsilon"]}
    return model["kind"], sizes, {**model, **layer, **norm, "positions": model["positions"]["kind"]}


def read(path):
    """The entries of the vocabularies, the configuration and the weights, without the model's own name before them."""
    with safe_open(path, "numpy") as file:
        kind, sizes, config = described(json.loads(file.metadata()["regard.model"]))
        arrays = {name.removeprefix("Transformer."): file.get_tensor(name) for name in file.keys()}
    able = (
        kind == "transformer"
        and config["positions"] in ("sinusoidal", "rotary")
        and config.get("window") is None
        and config.get("key_value_heads") in (None, config["heads"])
        and config["activation"] in ACTIVATIONS
    )
    if not able:
        sys.exit(f"ctranslate2_convert.py: converts sinusoidal or rotary positions, ReLU, GELU or SwiGLU only; got {config}")
    return sizes, config, {name: array.astype(numpy.float32) for name, array in arrays.items()}


class Weights:
    """Weights by name, each taken once."""

    def __init__(self, arrays):
        self.arrays = arrays

    def take(self, name, default=None):
        if default is not None and name not in self.arrays:
            return default
        return numpy.ascontiguousarray(self.arrays.pop(name))

    def joined(self, *names):
        """x W of regard is W x of CTranslate2; several matrices are put side by side. The weight and the bias."""
        pairs = [(self.take(f"{name}.weight").T, f"{name}.bias") for name in names]
        biases = [self.take(bias, numpy.zeros(len(weight), numpy.float32)) for weight, bias in pairs]
        return numpy.concatenate([weight for weight, _ in pairs]), numpy.concatenate(biases)

    def linear(self, spec, *names):
        weight, spec.bias = self.joined(*names)
        spec.weight = numpy.ascontiguousarray(weight)

    def gated(self, gate, other, name):
        """The two halves of a product: one goes through the activation, and is multiplied by the other."""
        for spec, weight, bias in zip((gate, other), *(numpy.split(both, 2) for both in self.joined(name))):
            spec.weight, spec.bias = numpy.ascontiguousarray(weight), bias

    def norm(self, spec, name):
        spec.gamma = self.take(f"{name}.weight")
        if f"{name}.bias" in self.arrays:
            spec.beta = self.take(f"{name}.bias")


def sinusoids(length, size):
    """Sines and cosines side by side; CTranslate2's own stand in two halves."""
    angles = numpy.arange(length)[:, None] * 10000.0 ** (-numpy.arange(0, size, 2) / size)
    return numpy.stack([numpy.sin(angles), numpy.cos(angles)], 2).reshape(length, -1)[:, :size].astype(numpy.float32)


def convert(path, folder, longest=1024):
    """Converts the model file at `path` into `folder`, for sentences of up to `longest` tokens."""
    sizes, config, arrays = read(path)
    weights = Weights(arrays)
    pre_norm, size = config["norm_place"] == "pre", config["d_model"]
    rotary, gated = config["positions"] == "rotary", config["activation"] == "swiglu"
    options = {"pre_norm": pre_norm, "activation": ACTIVATIONS[config["activation"]], "ffn_glu": gated, "rms_norm": config["norm"] == "rms"}
    if rotary:
        # All features of a head (0), in two halves.
        options |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config["rotary_base"]}
    spec = ctranslate2.specs.TransformerSpec(
        ctranslate2.specs.TransformerEncoderSpec(config["encoder_layers"], config["heads"], **options),
        ctranslate2.specs.TransformerDecoderSpec(config["decoder_layers"], config["heads"], **options),
    )
    target = weights.take("tables.target.weight")
    spec.encoder.embeddings[0].weight = weights.take("tables.source.weight", target)
    spec.decoder.embeddings.weight = target
    if config["tie"] == "none":
        weights.linear(spec.decoder.projection, "tables.output")
    else:
        spec.decoder.projection.weight = target
        spec.decoder.projection.bias = weights.take("tables.output_bias")
    for name in ("encoder", "decoder"):
        stack = getattr(spec, name)
        stack.scale_embeddings = True
        if not rotary:
            stack.position_encodings.encodings = sinusoids(longest, size)
        elif name == "encoder":
            # Without a table the encoder would add sinusoids.
            stack.position_encodings.encodings = numpy.zeros((longest, size), numpy.float32)
        if pre_norm:
            weights.norm(stack.layer_norm, f"{name}.norm")
        for number, part in enumerate(stack.layer):
            path = f"{name}.layers.{number}"
            own = part.self_attention
            weights.linear(own.linear[0], f"{path}.attention.projection.Fused.query_key_value")
            weights.linear(own.linear[1], f"{path}.attention.output")
            weights.norm(own.layer_norm, f"{path}.attention_block.norm")
            if name == "decoder":
                cross, separate = part.attention, f"{path}.cross_attention.projection.Separate"
                weights.linear(cross.linear[0], f"{separate}.query")
                weights.linear(cross.linear[1], f"{separate}.key", f"{separate}.value")
                weights.linear(cross.linear[2], f"{path}.cross_attention.output")
                weights.norm(cross.layer_norm, f"{path}.cross_block.norm")
            inner = f"{path}.feed_forward.inner"
            if gated:
                weights.gated(part.ffn.linear_0, part.ffn.linear_0_noact, inner)
            else:
                weights.linear(part.ffn.linear_0, inner)
            weights.linear(part.ffn.linear_1, f"{path}.feed_forward.outer")
            weights.norm(part.ffn.layer_norm, f"{path}.feed_forward_block.norm")
    if weights.arrays:
        sys.exit(f"ctranslate2_convert.py: weights left over: {sorted(weights.arrays)}")
    for side, entries in zip(("source", "target"), sizes):
        getattr(spec, f"register_{side}_vocabulary")([str(token) for token in range(entries)])
    settings = spec.config
    settings.bos_token, settings.eos_token, settings.unk_token = str(START), str(END), str(UNKNOWN)
    settings.decoder_start_token = str(START)
    settings.add_source_bos, settings.add_source_eos = False, True
    settings.layer_norm_epsilon = config["norm_epsilon"]
    spec.validate()
    Path(folder).mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="a model file of `regard train`")
    parser.add_argument("folder", help="where the CTranslate2 model goes")
    arguments = parser.parse_args()
    convert(arguments.model, arguments.folder)


if __name__ == "__main__":
    main()
