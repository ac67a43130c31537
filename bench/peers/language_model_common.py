"""What the sides of the comparison of language models share: the models, their checkpoints' folders, the questions."""

import json
import sys
from pathlib import Path

# Real sizes; weights are random, and of a deviation with which generated tokens vary and lead clearly in f32. By model:
# transformers' class and configuration.
MODELS = {
    "gpt2": ("GPT2LMHeadModel", {"initializer_range": 0.05}),
    # SmolLM-135M.
    "llama": ("LlamaForCausalLM", {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.05,
    }),
    # all-MiniLM-L6-v2.
    "minilm": ("BertModel", {
        "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12,
    }),
    "bert": ("BertModel", {}),
}
DTYPES = {"f32": "float32", "bf16": "bfloat16"}


def checkpoint(folder, model, dtype):
    """The folder of a checkpoint."""
    return Path(folder) / f"{model}-{dtype}"


def ids(batch, length, vocabulary):
    """Token ids of all sides' inputs: those of row r at position i are (7919 r + 104729 i + 1000) mod vocabulary."""
    return [[(7919 * r + 104729 * i + 1000) % vocabulary for i in range(length)] for r in range(batch)]


def serve(answer):
    """Answers each line of standard input, a question in JSON, with a line of JSON."""
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Unsupported as error:
            found = {"error": str(error)}
        print(json.dumps(found), flush=True)


class Unsupported(Exception):
    """A question that a side has no answer to."""
