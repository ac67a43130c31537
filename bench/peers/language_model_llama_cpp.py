"""The llama.cpp side of the comparison of language models, by the C functions of llama-cpp-python.

    echo '{"work": "decode", "model": "llama", "dtype": "bf16", "tokens": 64}' | python language_model_llama_cpp.py --folder FOLDER

Answers the questions `decode` and `prompt` of language_model_torch.py about the Llama shape, also with `"weights": "int8"`: q8_0, 8 bits
with a scale for each group of 32, as regard's. The GGUF files are made from the checkpoints in FOLDER, which have to be there. Keys and
values are f32, as regard's.
"""

import argparse
import ctypes
import time
from pathlib import Path

import gguf
import llama_cpp
import numpy
from safetensors.numpy import load_file

from language_model_common import MODELS, Unsupported, checkpoint, ids, serve

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}
STORED = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16, "int8": gguf.GGMLQuantizationType.Q8_0}
CONTEXT = 1024


def name(key):
    """GGUF's name of a tensor."""
    if not key.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[key]
    layer, rest = key.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def make(place, folder, stored):
    """Writes the checkpoint of the Llama shape as GGUF. It is read in f32: bfloat16 is drawn as f32 and rounded, like the checkpoint."""
    config = MODELS["llama"][1]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    # Written aside: a run that ends early leaves no half a file.
    aside = place.with_suffix(".part")
    writer = gguf.GGUFWriter(aside, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("no_vocab")
    for key, numbers in load_file(checkpoint(folder, "llama", "f32") / "model.safetensors").items():
        if key == "lm_head.weight":  # the table of embeddings once more
            continue
        turned = {"q_proj": heads, "k_proj": groups}.get(key.split(".")[-2])
        if turned:
            # llama.cpp turns neighbours, transformers the halves of a head.
            rows, columns = numbers.shape
            numbers = numbers.reshape(turned, 2, rows // turned // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        numbers = numpy.ascontiguousarray(numbers, numpy.float32)
        kind = stored if numbers.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name(key), gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    aside.rename(place)


class Models:
    """The side: the model last asked for, and the questions that it has been warmed up for."""

    def __init__(self, folder, threads):
        self.folder, self.threads, self.name, self.model, self.context, self.warm = folder, threads, None, None, None, set()
        # llama.cpp tells what it reads.
        self.silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()

    def load(self, model, weights):
        if model != "llama" or weights not in STORED:
            raise Unsupported(f"no model {model!r} in {weights!r}")
        if weights == self.name:
            return
        place = Path(self.folder) / f"llama-{weights}.gguf"
        if not place.exists():
            make(place, self.folder, STORED[weights])
        if self.context:
            llama_cpp.llama_free(self.context)
            llama_cpp.llama_model_free(self.model)
        self.model = llama_cpp.llama_model_load_from_file(str(place).encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = CONTEXT
        options.n_threads = options.n_threads_batch = self.threads
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.name, self.warm = weights, set()

    def step(self, tokens):
        """Reads tokens, and gives the best next one."""
        array = (llama_cpp.llama_token * len(tokens))(*tokens)  # the batch only points to it
        code = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens)))
        if code:
            raise Unsupported(f"llama_decode ended with {code}")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(numpy.ctypeslib.as_array(logits, shape=(MODELS["llama"][1]["vocab_size"],)).argmax())

    def run(self, question):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        count = question["length"] if question["work"] == "prompt" else question.get("prompt", 16)
        prompt = ids(1, count, MODELS["llama"][1]["vocab_size"])[0]
        started = time.perf_counter()
        found = [self.step(prompt)]
        if question["work"] == "prompt":
            return {"seconds": time.perf_counter() - started, "best": found[0]}
        started = time.perf_counter()
        for _ in range(question["tokens"]):
            found.append(self.step(found[-1:]))
        return {"seconds": time.perf_counter() - started, "ids": found[:-1]}

    def answer(self, question):
        if question["work"] not in ("decode", "prompt"):
            raise Unsupported(f"no work {question['work']!r}")
        self.load(question["model"], question.get("weights") or question.get("dtype", "f32"))
        if str(question) not in self.warm:
            self.run(question)
            self.warm.add(str(question))
        return self.run(question)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="of the checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    serve(Models(arguments.folder, arguments.threads).answer)


if __name__ == "__main__":
    main()
