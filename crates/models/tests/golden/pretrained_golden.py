"""Makes pretrained/<case>/: tiny random checkpoints of pretrained families with what the original library computes.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.23.0 safetensors numpy
    venv/bin/python pretrained_golden.py             writes all cases, in 20 seconds
    venv/bin/python pretrained_golden.py llama bert  writes the cases whose names start so

Made with Python 3.11, torch 2.15.0, transformers 5.23.0 (some cases, as their metadata says, with 5.24.0), numpy 2.4.6,
safetensors 0.8.0. On one machine a second run writes the same bytes.

A folder is what `save_pretrained` writes, so that it opens like a downloaded one. `config.v4.json` is the same
configuration in the words of transformers 4, in which most published folders are (`rope_theta` and `rope_scaling`
for `rope_parameters`, `torch_dtype` for `dtype`); that it gives the same bits is checked here.

`golden.safetensors` has what the checkpoint gives in float32 with eager attention; its metadata `golden` is JSON with
the versions and a note. Arrays, by name:

    ids [batch, length]                  with attention_mask, token_types, global_attention_mask where the case has them
    logits [batch, length, vocabulary]
    hidden.0 .. hidden.n                 what enters layer i; the last is after the final norm, where there is one
    attention.0 .. attention.n-1         [batch, heads, queries, keys]
    greedy [64]                          greedy continuation of row 0, all positions computed anew for every token;
                                         no token ends it. The best logit leads by at least 0.2 % of the largest.
    classes, tokens, start, end, pooled, sentence      outputs of heads

Cases with rotary scaling that depends on the length have the same once more for a longer row: long.ids, long.logits ..;
`greedy` continues long.ids. llama-dynamic also has greedy.cached, where each key stays as it was rotated when it was new.
Cases whose name ends with `-prompt` have one row of 2200 ids, more than are read at once here, and the logits of its last 8.
Encoder-decoders have decoder_ids, and hidden, attention and cross of the decoder beside encoder.hidden and
encoder.attention; their `greedy` starts after `decoder_start_token_id`. Values at positions where attention_mask is 0
are whatever the library computes there.
"""

import json
import math
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "pretrained"
NEW_TOKENS = 64
# Least lead of the best logit over the next, and least number of different tokens, of a greedy continuation.
LEAD, DIFFERENT = 2e-3, 8


# --- Checkpoints -----------------------------------------------------------------------------------------


def redraw(model, seed):
    """Draws every parameter so that layers, norms and biases matter: the library's own start is nearly linear."""
    generator = torch.Generator().manual_seed(seed)
    # Tables of this size neither outweigh the layers, so that each token is followed by itself, nor vanish beside them.
    config, table = model.config, 0.3
    if config.model_type.startswith("gemma"):
        table /= math.sqrt(config.hidden_size)
    elif config.model_type == "marian":
        table = 1 / math.sqrt(config.d_model)

    def normal(tensor, mean, deviation):
        tensor.copy_(mean + deviation * torch.randn(tensor.shape, generator=generator))

    drawn = set()  # a tied tensor is met twice, first as a table
    with torch.no_grad():
        for path, module in model.named_modules():
            kind = type(module).__name__
            for name, parameter in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if name not in ("weight", "bias", "final_logits_bias") or not parameter.requires_grad and name == "weight":
                    continue  # frequencies, positions, sinusoids
                if parameter in drawn:
                    continue
                drawn.add(parameter)
                if name == "final_logits_bias":
                    normal(parameter, 0.0, table)
                elif name == "bias":
                    normal(parameter, 0.0, 0.2)
                elif kind.endswith("Norm"):
                    normal(parameter, 0.0 if kind.startswith("Gemma") else 1.0, 0.25)
                elif path.endswith("relative_attention_bias"):
                    normal(parameter, 0.0, 1.0)
                elif isinstance(module, nn.Embedding):
                    normal(parameter, 0.0, table)
                else:
                    inputs = parameter.shape[0] if isinstance(module, Conv1D) else parameter.shape[1]
                    deviation = 1.5 / math.sqrt(inputs)
                    if kind == "Linear" and path.endswith("Attention.q"):  # T5 does not divide its scores
                        deviation /= math.sqrt(config.d_kv)
                    if path.endswith(("encoder_attn.out_proj", "EncDecAttention.o")):
                        deviation /= 4  # what is read of the source is nearly the same at each step
                    normal(parameter, 0.0, deviation)


def v4(config):
    """`config.json` in the words of transformers 4."""
    config = json.loads(json.dumps(config))
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.57.6"
    rope = config.pop("rope_parameters", None)
    if config["model_type"] == "gemma3_text":
        full = rope["full_attention"]
        config["rope_theta"] = full.pop("rope_theta")
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["rope_scaling"] = full
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern")
    elif rope:
        config["rope_theta"] = rope.pop("rope_theta")
        if config["model_type"] == "phi3":
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
            rope.pop("original_max_position_embeddings", None)
            rope["type"] = rope.pop("rope_type")
        config["rope_scaling"] = None if rope == {"rope_type": "default"} or rope == {"type": "default"} else rope
    if config["model_type"] == "t5":
        config["tie_word_embeddings"] = config.pop("scale_decoder_outputs")
    if config["model_type"] != "qwen2" or not config["use_sliding_window"]:
        config.pop("layer_types", None)
    return config


class Case:
    """A folder of `name`: a checkpoint of `kind` with `config`, stored as `dtype`, in files of at most `shard` bytes."""

    def __init__(self, name, kind, config, run, note, dtype=torch.float32, shard="1GB", finish=None, **options):
        self.name, self.kind, self.config, self.run, self.note = name, getattr(transformers, kind), config, run, note
        self.dtype, self.shard, self.finish, self.options = dtype, shard, finish, options
        self.folder = FOLDER / name

    def ids(self, rows, length, salt="ids"):
        """Token ids that follow from the case's name; the first ones, special tokens, do not occur."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.name} {salt}".encode()))
        return torch.randint(5, self.config["vocab_size"], (rows, length), generator=generator)

    def write(self):
        """Draws checkpoints until the greedy continuation has a clear lead everywhere."""
        for attempt in range(200):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.save(zlib.crc32(self.name.encode()) + attempt)
            try:
                arrays = {name: array.contiguous().clone() for name, array in self.run(self).items()}
                break
            except Unclear:
                continue
        else:
            raise AssertionError(f"{self.name}: no clear continuation")
        assert all(array.isfinite().all() for array in arrays.values()), self.name
        about = {
            "note": self.note, "model": self.kind.__name__, "transformers": transformers.__version__,
            "torch": torch.__version__.split("+")[0], "compute": "float32",
            "stored": str(self.dtype).removeprefix("torch."),
        }
        if self.dtype != torch.float32:
            about["compute"] += ", from the stored numbers"
        # One key: the order of several is not the same in each run.
        save_file(arrays, self.folder / "golden.safetensors", metadata={"golden": json.dumps(about)})
        self.check_v4(arrays)
        for path in self.folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        size = sum(path.stat().st_size for path in self.folder.rglob("*"))
        print(f"{self.name:20} {size:7} bytes, attempt {attempt + 1}", flush=True)

    def save(self, seed):
        """Writes the checkpoint."""
        torch.manual_seed(seed)
        model = self.kind(self.kind.config_class(**self.config))
        if self.options.get("untie"):
            model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
        redraw(model, seed)
        model.to(self.dtype).save_pretrained(self.folder, max_shard_size=self.shard)
        config = json.loads((self.folder / "config.json").read_text())
        (self.folder / "config.v4.json").write_text(json.dumps(v4(config), indent=2, sort_keys=True) + "\n")
        if self.finish:
            self.finish(self.folder)

    def model(self):
        """The checkpoint in float32. A new one each time: dynamic rotary scaling remembers the longest input."""
        return self.kind.from_pretrained(self.folder, dtype=torch.float32, attn_implementation="eager").eval()

    def check_v4(self, arrays):
        """The folder with the older configuration gives the same bits."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self.folder, folder, dirs_exist_ok=True)
            (Path(folder) / "config.v4.json").replace(Path(folder) / "config.json")
            own = self.folder
            try:
                self.folder = Path(folder)
                again = self.run(self)
            finally:
                self.folder = own
        for name, array in arrays.items():
            assert torch.equal(again[name], array), (self.name, name)


# --- Runs ------------------------------------------------------------------------------------------------


class Unclear(Exception):
    """A continuation with a narrow lead, or with few different tokens."""


@torch.inference_mode()
def call(model, **inputs):
    return model(**inputs, output_attentions=True, output_hidden_states=True, return_dict=True)


def numbered(name, arrays):
    return {f"{name}.{i}": array for i, array in enumerate(arrays)}


def greedy(logits, tokens=NEW_TOKENS):
    """`tokens` tokens, each the best by `logits(tokens so far)`."""
    found = []
    while len(found) < tokens:
        last = logits(found)
        best, second = last.topk(2).values.tolist()
        if best - second < LEAD * last.abs().max():
            raise Unclear
        found.append(last.argmax().item())
    if len(set(found)) < DIFFERENT:
        raise Unclear
    return torch.tensor(found)


def windows(config):
    """The window of each layer, None where there is none."""
    layers, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def check_masks(config, attentions):
    """Weights are positive exactly where a query may look, by a mask made here."""
    for window, weights in zip(windows(config), attentions, strict=True):
        behind = torch.arange(weights.shape[2])[:, None] - torch.arange(weights.shape[3])
        seen = (behind >= 0) & (behind < (window or math.inf))
        assert torch.equal(weights > 0, seen.expand_as(weights)), "another mask than by hand"


def causal(case):
    """Two rows of one length; with `long`, another row of that length."""
    arrays = {}
    for prefix, rows, length in (("", 2, case.options.get("length", 12)), ("long.", 1, case.options.get("long", 0))):
        if not length:
            continue
        ids, model = case.ids(rows, length, prefix + "ids"), case.model()
        output = call(model, input_ids=ids, use_cache=False)
        check_masks(model.config, output.attentions)
        found = {"ids": ids, "logits": output.logits, **numbered("hidden", output.hidden_states),
                 **numbered("attention", output.attentions)}
        arrays |= {prefix + name: array for name, array in found.items()}
    start = arrays["long.ids" if case.options.get("long") else "ids"][0].tolist()
    model = case.model()

    def logits(found):
        output = call(model, input_ids=torch.tensor([start + found]), use_cache=False)
        check_masks(model.config, output.attentions)
        return output.logits[0, -1]

    arrays["greedy"] = greedy(logits, case.options.get("tokens", NEW_TOKENS))
    if case.options.get("cached"):
        model, cache = case.model(), transformers.DynamicCache()

        def cached(found):
            ids = torch.tensor([found[-1:] or start])
            return call(model, input_ids=ids, past_key_values=cache, use_cache=True).logits[0, -1]

        arrays["greedy.cached"] = greedy(cached)
    return arrays


@torch.inference_mode()
def prompt(case):
    """A long prompt, read at once."""
    ids = case.ids(1, 2200)
    return {"ids": ids, "logits": case.model()(input_ids=ids, use_cache=False, logits_to_keep=8).logits}


def padded(case, lengths, pad, left=()):
    """Ids and mask of rows of `lengths`; rows in `left` have their padding on the left."""
    ids, mask = case.ids(len(lengths), max(lengths)), torch.ones(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        unused = slice(0, max(lengths) - length) if row in left else slice(length, None)
        ids[row, unused], mask[row, unused] = pad, 0
    return ids, mask


def encoder(case):
    """A full row, one padded on the right and, in RoBERTa, one on the left; two segments, where the model has them."""
    roberta = case.kind.config_class.model_type == "roberta"
    ids, mask = padded(case, [11, 7, 8] if roberta else [11, 7], case.config["pad_token_id"], left=[2])
    inputs = {"input_ids": ids, "attention_mask": mask}
    arrays = {"ids": ids, "attention_mask": mask}
    if case.config.get("type_vocab_size", 0) > 1:
        arrays["token_types"] = inputs["token_type_ids"] = (torch.arange(ids.shape[1]) >= 4).long() * mask
    output = call(case.model(), **inputs)
    arrays |= head(case, output)
    if case.kind.__name__ == "BertModel":
        mean = (output.last_hidden_state * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        arrays["pooled"], arrays["sentence"] = output.pooler_output, nn.functional.normalize(mean, dim=1)
    return arrays | numbered("hidden", output.hidden_states) | numbered("attention", output.attentions)


def head(case, output):
    """What the head of an encoder gives."""
    name = {"ForMaskedLM": "logits", "ForSequenceClassification": "classes", "ForTokenClassification": "tokens"}
    for ending, own in name.items():
        if case.kind.__name__.endswith(ending):
            return {own: output.logits}
    if case.kind.__name__.endswith("ForQuestionAnswering"):
        return {"start": output.start_logits, "end": output.end_logits}
    return {}


def translator(case):
    """Two sources, one of them padded; a target of each."""
    ids, mask = padded(case, [9, 6], case.config["pad_token_id"])
    model = case.model()
    start = torch.full((2, 1), model.config.decoder_start_token_id)
    decoder_ids = torch.cat([start, case.ids(2, 6, "decoder_ids")], 1)
    output = call(model, input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids, use_cache=False)

    def logits(found):
        target = torch.tensor([start[0].tolist() + found])
        return call(model, input_ids=ids[:1], decoder_input_ids=target, use_cache=False).logits[0, -1]

    return {
        "ids": ids, "attention_mask": mask, "decoder_ids": decoder_ids, "logits": output.logits,
        **numbered("encoder.hidden", output.encoder_hidden_states),
        **numbered("encoder.attention", output.encoder_attentions),
        **numbered("hidden", output.decoder_hidden_states), **numbered("attention", output.decoder_attentions),
        **numbered("cross", output.cross_attentions), "greedy": greedy(logits),
    }


def longformer(case):
    """A full row with two global tokens and a padded one with one; with other heads, those that the library chooses. The
    library gives the weights of a query as its global keys, then its band, and those of global queries apart; here they
    are put in place: attention.i is [batch, heads, queries, keys] as everywhere."""
    ids, mask = padded(case, [14, 9], case.config["pad_token_id"])
    kind, everywhere, given = case.kind.__name__, torch.zeros_like(mask), {}
    if kind.endswith("ForMaskedLM"):
        everywhere[0, [0, 5]], everywhere[1, 0] = 1, 1
        given["global_attention_mask"] = everywhere
    elif kind.endswith("ForSequenceClassification"):
        everywhere[:, 0] = 1
    elif kind.endswith("ForQuestionAnswering"):  # the question is before the first of three separators
        for row, question in enumerate([4, 2]):
            ids[row, [question, question + 1, mask[row].sum() - 1]] = case.config["sep_token_id"]
            everywhere[row, :question] = 1
    model = case.model()
    output = call(model, input_ids=ids, attention_mask=mask, **given)
    length, weights = ids.shape[1], []
    for i, local in enumerate(output.attentions):
        wide = output.global_attentions[i] if everywhere.any() else None
        reach = model.config.attention_window[i] // 2
        most = local.shape[3] - 2 * reach - 1
        dense = torch.zeros(*local.shape[:2], length, length)
        for row in range(len(ids)):
            globals_ = everywhere[row].nonzero().flatten().tolist()
            for query in range(length):
                if query in globals_:
                    dense[row, :, query] = wide[row, :, :length, globals_.index(query)]
                    continue
                for number, key in enumerate(globals_):
                    dense[row, :, query, key] = local[row, :, query, number]
                for key in range(max(0, query - reach), min(length, query + reach + 1)):
                    if key not in globals_:
                        dense[row, :, query, key] = local[row, :, query, most + key - query + reach]
        real = mask.bool()[:, None].expand(dense.shape[:3])
        assert torch.allclose(dense.sum(3)[real], torch.ones(()), atol=1e-5), "weights were lost"
        weights.append(dense)
    return {
        "ids": ids, "attention_mask": mask, **given, **head(case, output),
        **numbered("hidden", [hidden[:, :length] for hidden in output.hidden_states]), **numbered("attention", weights),
    }


# --- Folders as older programs wrote them ----------------------------------------------------------------


def change_names(folder, change):
    """Rewrites model.safetensors with other names or tensors."""
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", metadata={"format": "pt"})


def as_first_gpt2(folder):
    """openai-community/gpt2: no prefix, and each layer's causal mask as a buffer."""
    def change(tensors):
        tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        positions = tensors["wpe.weight"].shape[0]
        mask = torch.ones(positions, positions).tril().view(1, 1, positions, positions)
        layers = {name.split(".")[1] for name in tensors if name.startswith("h.")}
        return tensors | {f"h.{layer}.attn.bias": mask.clone() for layer in layers}

    change_names(folder, change)


def as_first_bert(folder):
    """google-bert/bert-base-uncased: gamma and beta, the output layer's copies, heads that are not this model's."""
    def change(tensors):
        old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
               for name, tensor in tensors.items()}
        size = old["bert.embeddings.word_embeddings.weight"].shape[1]
        old["bert.embeddings.position_ids"] = torch.arange(16)[None]
        old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
        old["cls.seq_relationship.weight"] = torch.zeros(2, size)
        old["cls.seq_relationship.bias"] = torch.zeros(2)
        return old

    change_names(folder, change)


def as_pickle(folder):
    """pytorch_model.bin, with the output layer that shares its storage with the table."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    torch.save(tensors, folder / "pytorch_model.bin")


def with_own_head(folder):
    """An output layer that is not the table of tokens, in spite of the configuration: both stay as they are."""
    def change(tensors):
        table = next(tensors[name] for name in ("transformer.wte.weight", "model.shared.weight") if name in tensors)
        return tensors | {"lm_head.weight": table.flip(0).contiguous()}

    change_names(folder, change)

def with_head_alone(folder):
    """The table of tokens under the name of the output layer that shares it."""
    change_names(folder, lambda tensors: {name.replace("model.embed_tokens", "lm_head"): tensor for name, tensor in tensors.items()})


def as_sentence_encoder(folder):
    """What sentence-transformers puts beside a model: which steps follow it."""
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
               for i, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")))]
    pooling = {"word_embedding_dimension": 18, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
               "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False}
    (folder / "1_Pooling").mkdir()
    for path, content in (("modules.json", modules), ("1_Pooling/config.json", pooling),
                          ("sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False})):
        (folder / path).write_text(json.dumps(content, indent=2) + "\n")


# --- Cases -----------------------------------------------------------------------------------------------

GPT2 = dict(vocab_size=53, n_positions=96, n_embd=20, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
LLAMA = dict(
    vocab_size=53, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=6,
    num_key_value_heads=3, max_position_embeddings=128,
)
# Heads of 16, so that scaled frequencies are many enough to differ.
SCALED = LLAMA | dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=32)


def rope(kind, theta=10000.0, **options):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **options}}


BERT = dict(
    vocab_size=51, hidden_size=18, num_hidden_layers=2, num_attention_heads=3, intermediate_size=28,
    max_position_embeddings=16, type_vocab_size=2, pad_token_id=0,
)
ROBERTA = BERT | dict(type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5)
LONGFORMER = BERT | dict(attention_window=[4, 8], max_position_embeddings=24, pad_token_id=1, type_vocab_size=1)
DISTILBERT = dict(vocab_size=51, dim=18, n_layers=2, n_heads=3, hidden_dim=28, max_position_embeddings=16, pad_token_id=0)
LABELS = {"id2label": {0: "ANGRY", 1: "CALM", 2: "GLAD"}, "label2id": {"ANGRY": 0, "CALM": 1, "GLAD": 2}}
T5 = dict(
    vocab_size=53, d_model=20, d_kv=6, d_ff=32, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
    relative_attention_max_distance=20, decoder_start_token_id=0, pad_token_id=0,
)
BART = dict(
    vocab_size=53, max_position_embeddings=80, encoder_layers=2, encoder_ffn_dim=28, encoder_attention_heads=4,
    decoder_layers=2, decoder_ffn_dim=32, decoder_attention_heads=2, d_model=20,
    pad_token_id=1,
)

CASES = [
    Case("gpt2", "GPT2LMHeadModel", GPT2 | dict(n_layer=3), causal, "tied"),
    Case("gpt2-scaled", "GPT2LMHeadModel",
         GPT2 | dict(n_embd=18, n_head=3, n_inner=40, scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=1e-4),
         causal, "n_inner, and scores of layer i (from 0) divided by i + 1"),
    Case("gpt2-first", "GPT2LMHeadModel", GPT2 | dict(n_positions=28), causal,
         "names as in openai-community/gpt2: no prefix `transformer.`, masks stored as h.i.attn.bias", tokens=16, finish=as_first_gpt2),
    Case("gpt2-own-head", "GPT2LMHeadModel", GPT2 | dict(n_embd=12, n_head=2), causal,
         "tied by its configuration, and an output layer of its own in the file", finish=with_own_head),
    Case("gpt2-pickle", "GPT2LMHeadModel", GPT2 | dict(n_embd=12, n_head=2), causal, "pytorch_model.bin", finish=as_pickle),

    Case("llama", "LlamaForCausalLM", LLAMA | dict(head_dim=6, rms_norm_eps=1e-5), causal,
         "6 query heads on 3, heads of 6 where d / heads is 4, untied"),
    Case("llama-shards", "LlamaForCausalLM", LLAMA | dict(tie_word_embeddings=True), causal,
         "tied, bfloat16 in several files", dtype=torch.bfloat16, shard="6KB"),
    Case("llama-head-alone", "LlamaForCausalLM", LLAMA | dict(tie_word_embeddings=True), causal,
         "tied, and lm_head.weight the only name of the table", finish=with_head_alone),
    Case("llama-biases", "LlamaForCausalLM", LLAMA | dict(attention_bias=True, mlp_bias=True), causal,
         "attention_bias and mlp_bias"),
    Case("llama-linear", "LlamaForCausalLM", SCALED | rope("linear", factor=4.0), causal, "rotary scaling: linear"),
    Case("llama-dynamic", "LlamaForCausalLM", SCALED | rope("dynamic", factor=2.0) | dict(max_position_embeddings=16),
         causal, "rotary scaling: dynamic NTK. ids within max_position_embeddings, long.ids beyond; greedy continues "
         "long.ids, all positions by the frequencies of the length so far, greedy.cached with keys as they were cached",
         long=26, cached=True),
    Case("llama-dynamic-prompt", "LlamaForCausalLM",
         SCALED | rope("dynamic", factor=2.0) | dict(max_position_embeddings=2100), prompt, "rotary scaling: dynamic NTK"),
    Case("llama-yarn", "LlamaForCausalLM",
         SCALED | rope("yarn", 500.0, factor=4.0, original_max_position_embeddings=1024) | dict(max_position_embeddings=4096),
         causal, "rotary scaling: YaRN with its defaults; the ramp goes from pair 2 to 7 of 8", length=16),
    Case("llama-yarn-options", "LlamaForCausalLM",
         SCALED | rope("yarn", 500.0, factor=8.0, original_max_position_embeddings=256, beta_fast=8.0, beta_slow=2.0,
                       mscale=1.0, mscale_all_dim=0.6, truncate=False) | dict(max_position_embeddings=2048),
         causal, "rotary scaling: YaRN with betas, both mscales, no truncation", length=16),
    Case("llama-llama3", "LlamaForCausalLM",
         SCALED | rope("llama3", 200.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=64) | dict(max_position_embeddings=512),
         causal, "rotary scaling: Llama 3; of 8 pairs some are kept, some smoothed, some divided", length=16),

    Case("mistral", "MistralForCausalLM", LLAMA | dict(head_dim=6, sliding_window=4), causal,
         "a query sees itself and 3 keys before it", length=14),
    Case("qwen2", "Qwen2ForCausalLM", LLAMA | dict(tie_word_embeddings=True), causal,
         "biases of query, key and value alone; tied"),
    Case("qwen2-window", "Qwen2ForCausalLM",
         LLAMA | dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=5, max_window_layers=1),
         causal, "window from layer 1 on; float16, untied", dtype=torch.float16, length=14),
    Case("qwen3", "Qwen3ForCausalLM", LLAMA | dict(head_dim=6, tie_word_embeddings=True), causal,
         "norms of queries and keys; tied"),
    Case("phi3", "Phi3ForCausalLM",
         LLAMA | dict(num_attention_heads=3, num_key_value_heads=1, sliding_window=5, pad_token_id=0, eos_token_id=0,
                      original_max_position_embeddings=128)
         | rope("default", partial_rotary_factor=0.75), causal,
         "joined projections, 6 of 8 dimensions rotated, window", length=14),
    Case("phi3-longrope", "Phi3ForCausalLM",
         LLAMA | dict(num_attention_heads=3, num_key_value_heads=3, pad_token_id=0, eos_token_id=0,
                      original_max_position_embeddings=16)
         | rope("longrope", short_factor=[1.0, 1.1, 1.25, 1.5], long_factor=[1.5, 2.5, 4.0, 7.5], partial_rotary_factor=1.0),
         causal, "LongRoPE: ids within original_max_position_embeddings (short_factor), long.ids beyond (long_factor); "
         "greedy continues long.ids", long=20),
    Case("phi3-longrope-prompt", "Phi3ForCausalLM",
         LLAMA | dict(num_attention_heads=3, num_key_value_heads=3, pad_token_id=0, eos_token_id=0,
                      original_max_position_embeddings=2100, max_position_embeddings=4096)
         | rope("longrope", short_factor=[1.0, 1.1, 1.25, 1.5], long_factor=[1.5, 2.5, 4.0, 7.5], partial_rotary_factor=1.0),
         prompt, "LongRoPE beyond original_max_position_embeddings"),
    Case("phi3-longrope-written", "Phi3ForCausalLM",
         LLAMA | dict(num_attention_heads=3, num_key_value_heads=3, pad_token_id=0, eos_token_id=0,
                      original_max_position_embeddings=16)
         | rope("longrope", short_factor=[1.0, 1.1, 1.25, 1.5], long_factor=[1.5, 2.5, 4.0, 7.5], partial_rotary_factor=1.0),
         causal, "LongRoPE: greedy grows from 12 tokens beyond original_max_position_embeddings"),
    Case("gemma2", "Gemma2ForCausalLM",
         LLAMA | dict(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=4,
                      query_pre_attn_scalar=12, attn_logit_softcapping=5.0, final_logit_softcapping=1.0),
         causal, "softcaps; layers 0 and 2 have a window; scores divided by sqrt(12), heads of 8", length=14),
    Case("gemma3", "Gemma3ForCausalLM",
         LLAMA | dict(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=4,
                      query_pre_attn_scalar=12, sliding_window_pattern=3, rope_parameters={
                          "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                          "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}}),
         causal, "layer 2 sees all with a theta and scaling of its own, 0 and 1 have a window", length=14),

    Case("bert", "BertForMaskedLM", BERT, encoder, "masked language model"),
    Case("bert-first", "BertForMaskedLM", BERT, encoder,
         "names as in google-bert/bert-base-uncased: gamma and beta, copies of tied weights, another task's head",
         finish=as_first_bert),
    Case("bert-untied", "BertForMaskedLM", BERT | dict(tie_word_embeddings=False), encoder,
         "masked language model, its output layer and bias apart from the table and from cls.predictions.bias"),
    Case("bert-sentence", "BertModel", BERT, encoder,
         "pooled: by the pooler; sentence: mean of the last states where the mask is 1, of length 1", finish=as_sentence_encoder),
    Case("bert-classes", "BertForSequenceClassification", BERT | LABELS, encoder, "sequence classification"),
    Case("bert-tokens", "BertForTokenClassification", BERT | LABELS, encoder, "token classification"),
    Case("bert-answer", "BertForQuestionAnswering", BERT, encoder, "span of an answer"),
    Case("roberta", "RobertaForMaskedLM", ROBERTA, encoder,
         "masked language model; positions count the ids that are not padding and start at 2, row 2 is padded on the left"),
    Case("roberta-untied", "RobertaForMaskedLM", ROBERTA | dict(tie_word_embeddings=False), encoder,
         "masked language model with an output layer of its own"),
    Case("roberta-classes", "RobertaForSequenceClassification", ROBERTA | LABELS, encoder, "sequence classification"),
    Case("distilbert", "DistilBertForMaskedLM", DISTILBERT, encoder, "masked language model"),
    Case("distilbert-untied", "DistilBertForMaskedLM", DISTILBERT | dict(tie_word_embeddings=False), encoder,
         "masked language model with an output layer of its own"),
    Case("distilbert-classes", "DistilBertForSequenceClassification", DISTILBERT | LABELS, encoder, "sequence classification"),
    Case("distilbert-answer", "DistilBertForQuestionAnswering", DISTILBERT, encoder, "span of an answer"),
    Case("longformer", "LongformerForMaskedLM", LONGFORMER, longformer,
         "windows of 4 (2 on either side) and 8, global tokens with projections of their own; all rows are padded to 16"),
    Case("longformer-classes", "LongformerForSequenceClassification", LONGFORMER | LABELS, longformer,
         "sequence classification: the first token is global"),
    Case("longformer-tokens", "LongformerForTokenClassification", LONGFORMER | LABELS, longformer,
         "token classification: no global tokens"),
    Case("longformer-answer", "LongformerForQuestionAnswering", LONGFORMER | dict(sep_token_id=3), longformer,
         "span of an answer: the question is global; another separator"),

    Case("t5", "T5ForConditionalGeneration", T5, translator, "ReLU, tied; heads of 6 where d / heads is 5"),
    Case("t5-gated", "T5ForConditionalGeneration",
         T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=3), translator,
         "version 1.1: gated GELU, untied; 2 + 3 layers", untie=True),
    Case("bart", "BartForConditionalGeneration", BART, translator, "final_logits_bias is not 0; 4 heads, in the decoder 2"),
    Case("bart-untied", "BartForConditionalGeneration",
         BART | dict(encoder_layers=1, decoder_layers=1, tie_word_embeddings=False), translator,
         "untied: tables of the encoder and the decoder, an output layer, and `shared`, which is not used"),
    Case("bart-own-head", "BartForConditionalGeneration", BART | dict(encoder_layers=1, decoder_layers=1), translator,
         "tied by its configuration, and an output layer of its own in the file", finish=with_own_head),
    Case("marian", "MarianMTModel",
         BART | dict(activation_function="swish", scale_embedding=True, pad_token_id=52, decoder_start_token_id=52,
                     eos_token_id=0, bos_token_id=None),
         translator, "sinusoids (all sines, then all cosines), SiLU, tables times sqrt(d); starts with padding"),
    Case("marian-two", "MarianMTModel",
         BART | dict(activation_function="swish", scale_embedding=True, pad_token_id=4, decoder_start_token_id=4,
                     eos_token_id=0, bos_token_id=None, vocab_size=47, decoder_vocab_size=53,
                     share_encoder_decoder_embeddings=False),
         translator, "a vocabulary of 47 for sources and one of 53 for targets"),
]


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wanted = tuple(sys.argv[1:])
    for case in CASES:
        if case.name.startswith(wanted or ""):
            case.write()
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    print(f"{FOLDER}: {len(CASES)} cases, {sum(path.stat().st_size for path in files)} bytes")


if __name__ == "__main__":
    main()
