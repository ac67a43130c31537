"""Makes sentence/: what sentence-transformers puts beside a model, in its forms of today and of older versions, and the vectors that it
makes with pretrained/bert-sentence and the tokenizer of scores/.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.24.0 sentence-transformers==6.2.0
    venv/bin/python sentence_golden.py

Made with Python 3.11. A folder has the files of a case beside config.json, weights and tokenizer; vectors.json has the texts and, by
case, the most tokens of a text and the vector of each. reading.json has the same of cases in which texts are read in lower case or behind
a prompt, by the name of the prompt ("" for the default one), with the name of what compares the vectors.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from torch import nn

from scores_golden import LONG, opened, tokenizer

HERE = Path(__file__).resolve().parent
MODEL, TO = HERE / "pretrained" / "bert-sentence", HERE / "sentence"
SIZE = 18
TEXTS = ["The bank of the river", "Bon put money in her town!", "", LONG]
BESIDE = ("modules.json", "sentence_bert_config.json", "tokenizer_config.json", "config_sentence_transformers.json")
# Capital letters, special tokens in the text, and texts that are cut.
READ = ["The OLD Bank of the river", "She [MASK] on The [SEP] stone", "", LONG]


def dense(inputs, outputs, activation, bias=True):
    return Dense(inputs, outputs, bias, activation, torch.randn(outputs, inputs) / inputs**0.5, torch.randn(outputs) / 4)


def older_dense(folder, outputs, activation):
    """LaBSE's: weights as a pickle."""
    folder.mkdir()
    config = {"in_features": SIZE, "out_features": outputs, "bias": True, "activation_function": activation}
    (folder / "config.json").write_text(json.dumps(config))
    torch.save({"linear.weight": torch.randn(outputs, SIZE) / 4, "linear.bias": torch.randn(outputs) / 4},
               folder / "pytorch_model.bin")


def older(folder, pooled, after, most):
    """A folder as older versions wrote it: `pooled` are the flags that are set."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *((f"{i}_{kind}", kind) for i, kind in enumerate(after, 2))]
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
               for i, (path, kind) in enumerate(kinds)]
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling = {"word_embedding_dimension": SIZE, **{f"pooling_mode_{flag}": flag in pooled for flag in flags}}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=2) + "\n")
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": most, "do_lower_case": False}) + "\n")


def labse(folder):
    older(folder, ["cls_token"], ["Dense", "Normalize"], 6)
    older_dense(folder / "2_Dense", 7, "torch.nn.modules.activation.Tanh")


def several(folder):
    older(folder, ["mean_tokens", "max_tokens", "weightedmean_tokens"], [], None)


def saved(*modules, length=16):
    def write(folder):
        model = SentenceTransformer(modules=[Transformer(str(folder), max_seq_length=length), *modules])
        model.save(str(folder))
    return write


def copied(folder, to):
    """What sentence-transformers wrote beside the model."""
    to.mkdir(parents=True)
    for path in folder.iterdir():
        if path.name in BESIDE:
            shutil.copy(path, to)
        elif path.is_dir() and any(path.iterdir()):
            shutil.copytree(path, to / path.name)


def reading():
    """reading.json and its cases."""
    prompts = {"query": "put money in The town: ", "passage": "he ", "document": ""}
    every = ["lasttoken", "cls", "weightedmean", "mean", "max", "mean_sqrt_len_tokens"]

    def lower(folder):
        older(folder, ["mean_tokens"], ["Normalize"], 16)
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16, "do_lower_case": True}) + "\n")

    def prompted(pooling, length, **options):
        def write(folder):
            model = SentenceTransformer(modules=[Transformer(str(folder), max_seq_length=length), pooling], prompts=prompts, **options)
            model.save(str(folder))
        return write

    def left_out(folder):
        prompted(Pooling(SIZE, every, include_prompt=False), 12, default_prompt_name="query", similarity_fn_name="manhattan")(folder)
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": True}) + "\n")

    cases = {
        "lower": (lower, [None]),
        "prompted": (prompted(Pooling(SIZE, "mean"), 16, default_prompt_name="query", similarity_fn_name="dot"),
                     [None, "passage", "document"]),
        "prompts": (prompted(Pooling(SIZE, "cls"), 9, similarity_fn_name="euclidean"), [None, "query", "passage"]),
        "left-out": (left_out, [None, "passage", "document"]),
    }
    found = {}
    for name, (write, asked) in cases.items():
        shutil.rmtree(TO / name, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            for file in ("config.json", "model.safetensors"):
                shutil.copy(MODEL / file, folder)
            cased = tokenizer()
            cased["normalizer"]["lowercase"] = False
            opened(64).save_pretrained(folder)
            (folder / "tokenizer.json").write_text(json.dumps(cased) + "\n")
            write(folder)
            (folder / "tokenizer.json").write_text(json.dumps(cased) + "\n")
            model = SentenceTransformer(str(folder), device="cpu")
            vectors = {prompt or "": model.encode(READ, prompt_name=prompt, batch_size=1, show_progress_bar=False) for prompt in asked}
            found[name] = {
                "most": min(model.max_seq_length, 16), "similarity": model.similarity_fn_name,
                "vectors": {prompt: rows.tolist() for prompt, rows in vectors.items()},
            }
            copied(folder, TO / name)
            shutil.copy(folder / "tokenizer.json", TO / name)
    (TO / "reading.json").write_text(json.dumps({"texts": READ, "cases": found}) + "\n")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    transformers.logging.disable_progress_bar()
    every = ["lasttoken", "cls", "weightedmean", "mean", "max", "mean_sqrt_len_tokens"]
    cases = {
        "labse": labse,
        "several": several,
        "cls": saved(Pooling(SIZE, "cls"), Normalize(), length=9),
        "every": saved(Pooling(SIZE, every)),
        "dense": saved(Pooling(SIZE, ["mean", "cls"]), dense(2 * SIZE, 12, nn.GELU()), Normalize(), dense(12, 10, nn.Sigmoid(), False),
                       dense(10, 9, nn.ReLU()), dense(9, 5, None)),
    }
    vectors = {}
    shutil.rmtree(TO, ignore_errors=True)
    for name, write in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            for file in ("config.json", "model.safetensors"):
                shutil.copy(MODEL / file, folder)
            opened(64).save_pretrained(folder)
            write(folder)
            model = SentenceTransformer(str(folder), device="cpu")
            found = model.encode(TEXTS, show_progress_bar=False)
            vectors[name] = {"most": min(model.max_seq_length, 16), "vectors": found.tolist()}
            copied(folder, TO / name)
    (TO / "vectors.json").write_text(json.dumps({"texts": TEXTS, "cases": vectors}) + "\n")
    reading()


if __name__ == "__main__":
    main()
