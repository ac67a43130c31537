#!/usr/bin/env python3
"""Writes hugging_face.json: small tokenizers of the families that are in use, and the output of the library tokenizers for some
lines, for tests/hugging_face.rs.

Run:  python3 -m venv venv && venv/bin/pip install tokenizers==0.22.2 sentencepiece==0.2.3 protobuf==7.36.2
      venv/bin/python crates/train/tests/golden/hugging_face_golden.py
The library's trainers break ties differently in every run, so the vocabularies differ from run to run; the tokenizers and
outputs in one file belong together.
"""

import io
import json
import os

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

assert tokenizers.__version__ == "0.22.2", tokenizers.__version__

TEXT = """A man in a red shirt is riding a bicycle.
A man in a blue shirt is riding a horse.
Two men are riding bicycles in the street.
The man's dog isn't here, they're outside.
Ein Mann in einem roten Hemd fährt Fahrrad.
Ein Mann in einem blauen Hemd reitet ein Pferd.
Zwei Männer fahren auf der Straße Fahrrad.
Two dogs are running on the beach!""".split("\n")

LINES = TEXT + [
    "riding",
    "A MÄNNER's  bicycle,outside\t(12,345.67)",
    "人骑自行车。 🚲👍🏽 naïve café",
    "हिन्दी में एक वाक्य ﬁ Ⅷ ½",
    " leading and trailing ",
    "</s> <s> [SEP]",
    "x" * 120,
    "don't you 're I'M 5€",
    "a\nb\u00a0c\u200bd",
]


def byte_level():
    """GPT-2 and RoBERTa: byte-level BPE whose decoder knows bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=True)
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>", length=32)
    tokenizer.enable_truncation(8)
    return tokenizer


def split():
    """Llama 3 and Qwen: byte-level BPE after a regular expression, one special token for start and end."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|reserved|>"])
    return tokenizer


def wordpiece():
    """BERT, lower-cased."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def unigram():
    """ALBERT, XLM-R and NLLB: Unigram over metaspace."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def sentencepiece_model():
    """T5 and Marian: a model of sentencepiece with its own table of characters, as the library transformers converts it. There is no
    token that starts."""
    rules = "/tmp/hugging_face_golden.tsv"
    with open(rules, "w") as file:
        for before, after in [("ﬁ", "fi"), ("½", "1/2"), ("\u200b", ""), ("Ⅷ", "VIII"), ("\u00a0", " "), ("\t", " "), ("\n", " ")]:
            codes = [" ".join(f"{ord(c):X}" for c in text) for text in (before, after)]
            file.write("\t".join(codes) + "\n")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=written, vocab_size=70, normalization_rule_tsv=rules,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, num_threads=1)
    os.remove(rules)
    proto = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    tokenizer = Tokenizer(models.Unigram([(piece.piece, piece.score) for piece in proto.pieces], unk_id=2))
    tokenizer.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return tokenizer


def byte_fallback():
    """Llama 2 and Gemma: BPE over metaspace whose unknown characters are bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    # Such vocabularies were learned word by word, though their files do not split text into words.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    # Only the first three are special in such files.
    document = json.loads(tokenizer.to_str())
    document["pre_tokenizer"] = None
    document["added_tokens"] = document["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(document))


def main():
    golden = {}
    for make in [byte_level, split, wordpiece, unigram, sentencepiece_model, byte_fallback]:
        tokenizer = make()
        document = json.loads(tokenizer.to_str())
        # Switched off, as regard leaves them out.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        cases = []
        for text in LINES:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)})
        golden[make.__name__] = {"tokenizer": document, "cases": cases}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hugging_face.json")
    with open(path, "w") as file:
        json.dump(golden, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


main()
