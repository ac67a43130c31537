"""The PyTorch side of the comparison of language models: Hugging Face transformers on the CPU.

    echo '{"work": "decode", "model": "gpt2", "dtype": "bf16", "tokens": 64}' | python language_model_torch.py --folder FOLDER

Reads a question a line and answers with the `seconds` of one run, after a run to warm up when a question comes for the
first time:

    {"work": "decode", "model": "gpt2", "dtype": "bf16", "tokens": 64}        `tokens` greedy steps after a prompt of 16 ids
                                                                             ("prompt"), without the prompt's time
    {"work": "prompt", "model": "llama", "dtype": "f32", "length": 512}       one pass that fills the cache, last logits
    {"work": "encode", "model": "minilm", "dtype": "f32", "batch": 32, "length": 64}     last hidden states
    {"work": "memory"}                                                       the most memory that the process has held

`ids` of `decode` are the tokens found, `best` of `prompt` the best next token, `probe` of `encode` four numbers of the last position of the
last row, so that sides can be compared. Checkpoints that FOLDER lacks are made there with random weights: 2.2 GB for all. Ask for memory
in a process that has run one model alone.

The settings are those that were fastest: scaled_dot_product_attention, inference mode, a plain loop in place of
`generate`, no padding mask, a cache that grows ("cache": "static" asks for one that does not: 3 to 15 % slower in
`decode`). torch.compile of a step was slower.
"""

import argparse
import subprocess
import sys
import time

import torch
import transformers

from language_model_common import DTYPES, MODELS, Unsupported, checkpoint, ids, serve
from memory import peak_bytes


def make(folder, model, dtype):
    """Writes a checkpoint."""
    kind, config = MODELS[model]
    kind = getattr(transformers, kind)
    torch.manual_seed(1)
    # Drawn in f32, so that both types are the same model.
    kind(kind.config_class(**config)).to(getattr(torch, DTYPES[dtype])).save_pretrained(checkpoint(folder, model, dtype))


def made(folder, model, dtype):
    """The folder of a checkpoint; if it is not there, another process makes it, whose memory is not counted here."""
    place = checkpoint(folder, model, dtype)
    if not (place / "model.safetensors").exists():
        command = [sys.executable, __file__, "--folder", folder, "--make", model, dtype]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return place


class Models:
    """The side: the model last asked for, and the questions that it has been warmed up for."""

    def __init__(self, folder):
        self.folder, self.name, self.model, self.warm = folder, None, None, set()

    def load(self, model, dtype):
        if (model, dtype) == self.name:
            return
        if model not in MODELS or dtype not in DTYPES:
            raise Unsupported(f"no model {model!r} in {dtype!r}")
        self.model = None  # before the next one is read
        place = made(self.folder, model, dtype)
        kind = getattr(transformers, MODELS[model][0])
        options = {"add_pooling_layer": False} if kind is transformers.BertModel else {}
        self.model = kind.from_pretrained(
            place, dtype=getattr(torch, DTYPES[dtype]), attn_implementation="sdpa", **options,
        ).eval()
        self.name, self.warm = (model, dtype), set()

    def cache(self, question, length):
        if question.get("cache") == "static":
            return transformers.StaticCache(config=self.model.config, max_cache_len=length)
        return transformers.DynamicCache(config=self.model.config)

    def inputs(self, batch, length):
        return torch.tensor(ids(batch, length, self.model.config.vocab_size))

    def decode(self, question):
        prompt, tokens = self.inputs(1, question.get("prompt", 16)), question["tokens"]
        cache = self.cache(question, prompt.shape[1] + tokens)
        output = self.model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        found = [output.logits[0, -1].argmax().item()]
        started = time.perf_counter()
        for place in range(prompt.shape[1], prompt.shape[1] + tokens):
            output = self.model(
                input_ids=torch.tensor([[found[-1]]]), past_key_values=cache, use_cache=True,
                position_ids=torch.tensor([[place]]),
            )
            found.append(output.logits[0, -1].argmax().item())
        return {"seconds": time.perf_counter() - started, "ids": found[:tokens]}

    def prompt(self, question):
        prompt = self.inputs(1, question["length"])
        cache = self.cache(question, question["length"])
        started = time.perf_counter()
        logits = self.model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        best = logits[0, -1].argmax().item()
        return {"seconds": time.perf_counter() - started, "best": best}

    def encode(self, question):
        batch = self.inputs(question["batch"], question["length"])
        started = time.perf_counter()
        states = self.model(input_ids=batch).last_hidden_state
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "probe": states[-1, -1, :4].tolist()}

    @torch.inference_mode()
    def answer(self, question):
        if question["work"] == "memory":
            return {"peak_bytes": peak_bytes()}
        self.load(question["model"], question.get("dtype", "f32"))
        if question["work"] not in ("decode", "prompt", "encode"):
            raise Unsupported(f"no work {question['work']!r}")
        if (question["work"] == "encode") != isinstance(self.model, transformers.BertModel):
            raise Unsupported(f"{question['model']} does not {question['work']}")
        run = getattr(self, question["work"])
        if str(question) not in self.warm:
            run(question)
            self.warm.add(str(question))
        return run(question)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="of the checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--make", nargs=2, metavar=("MODEL", "DTYPE"), help="only writes a checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.make:
        make(arguments.folder, *arguments.make)
        return
    serve(Models(arguments.folder).answer)


if __name__ == "__main__":
    main()
