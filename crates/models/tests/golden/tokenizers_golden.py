"""Makes tokenizers/<kind>/: a small tokenizer of each kind as folders of models have it, with what it gives.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 transformers==5.23.0 sentencepiece==0.2.3 protobuf jinja2
    venv/bin/python tokenizers_golden.py

A second run writes the same bytes.

    gpt2, roberta, chatml    byte-level BPE; chatml splits by a pattern of its own and has a chat template
    bert                     WordPiece, lower-cased
    t5                       Unigram with a table of normalisation
    llama, gemma             BPE on characters with single bytes for the rest, made from a SentencePiece model; chat templates
    KIND-files               the same without tokenizer.json: vocab.json and merges.txt, vocab.txt, or a SentencePiece model;
                             marian-files has one such model for each side and a vocabulary

Files are in the words of transformers 4 (special_tokens_map.json, added_tokens_decoder, the chat template in
tokenizer_config.json), but for `llama`, which is as transformers 5 writes it (chat_template.jinja).

golden.json: `encodings` have a text, its ids and offsets without special tokens (offsets in characters of the text, not
bytes), the ids `with_special` tokens and what these give decoded, with and without special tokens; `pairs` the ids,
types and offsets of two texts; `chats` the text that messages become, or the error. Ids come from `tokenizers`
reading tokenizer.json; of gpt2-, roberta- and bert-files from transformers' AutoTokenizer, and are those of KIND; of
t5- and llama-files they are those of KIND (transformers 5 reads llama-files in another way, without the space before
the first word of a text that begins with one), with the `sentencepiece` ids of texts where that library finds others; of
marian-files (which have no offsets) they are MarianTokenizer's. Decoding is without clean-up.

chat_templates.json, beside the folders: templates, each of a few constructs, and the text that two messages become by them.
"""

import io
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import jinja2
import sentencepiece
import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.utils.chat_template_utils import _compile_jinja_template
from transformers.utils.sentencepiece_model_pb2_new import ModelProto

FOLDER = Path(__file__).resolve().parent / "tokenizers"

CORPUS = [
    "A man in a red shirt is riding a bicycle down the street.",
    "Two dogs are playing with a ball in the snow, and the children watch them.",
    "The woman doesn't like it; she'll say she's seen 12 or 345 of them, I'm sure.",
    "Zwei Hunde spielen im Schnee, während die Kinder über die Straße gehen.",
    "Un café naïve à la carte. 日本語の文章です。 Привет мир!",
    "People are standing near the old building, talking about the weather and the news of the day.",
]
GERMAN = [CORPUS[3], "Ein Mann in einem roten Hemd fährt mit dem Fahrrad.", "Die Frau und der Hund sind im Schnee."]

TEXTS = [
    "A man is riding a bicycle.", "", " ", "  two  spaces ", " leading", "trailing ", "line\nbreak\n\n\nand\ttab\r\nend",
    "Don't we'll I'M it's", "12345 3.14 1,000", "unbelievablebicyclestreet", "Straße über Äpfel naïve café",
    "cafe\u0301 A\u030angstro\u0308m", "日本語 の文章", "Привет, мир!", "🙂 👩‍👩‍👧 🏳️‍🌈", "ﬁve ＡＢＣ … ½ ²",
    "non\u00a0breaking\u200bzero\u3000wide", "مرحبا بالعالم", "İstanbul ıßΣς", "a\u0000b\u0001c\ufffdd", "▁low ▁ line",
    "x" * 101, "!?...--- (a) [b] {c}", "Ġ Ċ raw", "\ud7ff\ue000\U0010ffff",
]


# --- Training --------------------------------------------------------------------------------------------


def byte_level(size, special, split=None):
    """Byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    return tokenizer


def sentence_pieces(corpus, **options):
    """A SentencePiece model, as the bytes of its file."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus * 3), model_writer=file, num_threads=1, minloglevel=2, hard_vocab_limit=False, **options)
    return file.getvalue()


def from_sentence_pieces(model):
    """BPE with single bytes for the rest, from a SentencePiece model: every split of a piece into two is a merge, those
    of better pieces first."""
    pieces = [(piece.piece, piece.score) for piece in ModelProto.FromString(model).pieces]
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces:
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in ids and piece[i:] in ids]
        merges += [(score, split) for split in sorted(splits, key=lambda split: (ids[split[0]], ids[split[1]]))]
    merges = [split for _, split in sorted(merges, key=lambda merge: -merge[0])]
    return Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))


def word_pieces(tokenizer):
    """Pieces of the corpus's words: characters, short words, the beginnings and ends of long ones. (The library's trainer
    chooses others in each run.)"""
    text = tokenizer.normalizer.normalize_str(" ".join(CORPUS))
    pieces = set()
    for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
        pieces |= {word} if len(word) < 6 else {word[:4], "##" + word[4:], "##" + word[-3:]}
        pieces |= {word[0], *("##" + character for character in word[1:])}
    return sorted(pieces)


# --- Folders ---------------------------------------------------------------------------------------------


def token(content, **flags):
    base = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": content, **base, **flags}


def write_json(path, content):
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def configure(folder, kind, roles, added=(), **options):
    """tokenizer_config.json and special_tokens_map.json in the words of transformers 4."""
    config = {role: {"__type": "AddedToken", **one} if isinstance(one, dict) else one for role, one in roles.items()} | options
    if added:
        config["added_tokens_decoder"] = {str(number): {**one, "special": True} for number, one in added}
    write_json(folder / "tokenizer_config.json", dict(sorted({**config, "tokenizer_class": kind}.items())))
    write_json(folder / "special_tokens_map.json", roles)


def fresh(kind):
    folder = FOLDER / kind
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def save(tokenizer, folder):
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


# --- What they give --------------------------------------------------------------------------------------


def encoding(tokenizer, text):
    """By `tokenizers`."""
    plain = tokenizer.encode(text, add_special_tokens=False)
    full = tokenizer.encode(text)
    return {
        "text": text, "ids": plain.ids, "offsets": plain.offsets, "with_special": full.ids,
        "decoded": tokenizer.decode(full.ids, skip_special_tokens=False),
        "decoded_without_special": tokenizer.decode(full.ids, skip_special_tokens=True),
    }


def pair(tokenizer, first, second):
    both = tokenizer.encode(first, second)
    return {"texts": [first, second], "ids": both.ids, "types": both.type_ids, "offsets": both.offsets}


def chat(tokenizer, messages, **options):
    """By transformers' `apply_chat_template`: trim_blocks and lstrip_blocks are on."""
    asked = {"messages": messages, **options}
    try:
        return {**asked, "text": tokenizer.apply_chat_template(messages, tokenize=False, **options)}
    except Exception as error:
        return {**asked, "error": str(error)}


def golden(folder, note, encodings, pairs=(), chats=()):
    """One line for each case."""
    about = {"tokenizers": tokenizers.__version__, "transformers": transformers.__version__,
             "sentencepiece": sentencepiece.__version__, "note": note}
    parts = [f'"about": {json.dumps(about, ensure_ascii=False)}']
    for name, cases in (("encodings", encodings), ("pairs", pairs), ("chats", chats)):
        if cases:
            # Escaped, since some texts have characters that editors change.
            lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
            parts.append(f'"{name}": [\n{lines}\n]')
    (folder / "golden.json").write_text("{" + ",\n".join(parts) + "}\n")


def golden_of(folder, note, texts, pairs=(), chats=(), options=()):
    """Of a folder with tokenizer.json; gives the encodings."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encodings = [encoding(tokenizer, text) for text in TEXTS + texts]
    chats = list(chats)
    if chats:
        library = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        chats = [chat(library, messages, add_generation_prompt=prompt) for messages in chats for prompt in (False, True)]
    golden(folder, note, encodings, [pair(tokenizer, *texts) for texts in pairs], chats)
    return encodings


def golden_of_files(folder, note, texts, same):
    """Of a folder without tokenizer.json; gives what transformers finds otherwise than the folder that has one, `same`."""
    library = transformers.AutoTokenizer.from_pretrained(folder)
    encodings = [encoding(library.backend_tokenizer, text) for text in TEXTS + texts]
    other = [own["text"] for own, other in zip(encodings, same) if own != other]
    assert not other, (folder.name, other)
    golden(folder, note, encodings)


def golden_of_pieces(folder, note, model, same):
    """Of a folder with a SentencePiece model alone: what its tokenizer.json would give, and where the library that made
    the model finds other ids (of texts without special tokens), these."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    encodings = [dict(one) for one in same]
    for one in encodings[:len(TEXTS)]:
        ids = processor.encode(one["text"])
        if ids != one["ids"]:
            one["sentencepiece"] = ids
            print(f"{folder.name}: {one['text']!r}: {one['ids']}, by sentencepiece {ids}")
    golden(folder, note, encodings)


PAIRS = [("Who rides?", "A man is riding a bicycle."), ("", "dogs"), ("the  snow ", " the news")]
USER, ANSWER = {"role": "user", "content": " Who is riding? "}, {"role": "assistant", "content": "A man.\n"}
SYSTEM = {"role": "system", "content": "Answer in one word."}
CHATS = [
    [USER], [SYSTEM, USER], [USER, ANSWER, {"role": "user", "content": "<b>\"Where\"</b> & 'why'?"}],
    [SYSTEM, USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA man."}, USER], [USER, USER], [ANSWER],
]


# --- Kinds -----------------------------------------------------------------------------------------------


def gpt2():
    end = "<|endoftext|>"
    roles = {"bos_token": end, "eos_token": end, "unk_token": end}
    texts = [f"one{end}two", f" {end} ", "<|ENDOFTEXT|>"]
    folder = fresh("gpt2")
    tokenizer = byte_level(330, [end])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    save(tokenizer, folder)
    configure(folder, "GPT2Tokenizer", roles, [(0, token(end))], add_prefix_space=False, model_max_length=1024)
    same = golden_of(folder, "byte-level BPE as of GPT-2", texts)

    folder = fresh("gpt2-files")
    tokenizer.model.save(str(folder))
    configure(folder, "GPT2Tokenizer", roles, model_max_length=1024)
    golden_of_files(folder, "vocab.json and merges.txt", texts, same)


def roberta():
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    roles = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "mask_token": token("<mask>", lstrip=True),
             "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}
    texts = ["The <mask> is red.", "a<mask>b", "<s>x</s>"]
    folder = fresh("roberta")
    tokenizer = byte_level(330, special[:4] + [AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    save(tokenizer, folder)
    added = [(number, token(one, lstrip=one == "<mask>")) for number, one in enumerate(special)]
    configure(folder, "RobertaTokenizer", roles, added, add_prefix_space=False, model_max_length=512)
    same = golden_of(folder, "byte-level BPE as of RoBERTa; <mask> takes the space before it", texts, PAIRS)

    folder = fresh("roberta-files")
    tokenizer.model.save(str(folder))
    configure(folder, "RobertaTokenizer", roles, model_max_length=512)
    golden_of_files(folder, "vocab.json and merges.txt, processed as RoBERTa does", texts, same)


CHATML = """{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.last < 0 and message.role == "user" and message.content is string and not message.content.startswith('<tool>') %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- if messages and messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content.rstrip('\\n') + '<|im_end|>' }}
    {%- if not loop.last or add_generation_prompt %}{{ '\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def chatml():
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    folder = fresh("chatml")
    tokenizer = byte_level(330, special, split=(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    save(tokenizer, folder)
    configure(folder, "PreTrainedTokenizerFast", {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
              [(number, token(one)) for number, one in enumerate(special)], model_max_length=128, bos_token=None,
              unk_token=None, additional_special_tokens=special[1:], chat_template=CHATML)
    golden_of(folder, "byte-level BPE as of Qwen and Llama 3: NFC, a pattern; the template is of Qwen 3's kind",
              ["<|im_start|>user\nhi<|im_end|>", "a <|im_end|> b"], chats=CHATS)


def bert():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    roles = {"cls_token": "[CLS]", "mask_token": "[MASK]", "pad_token": "[PAD]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    texts = ["The [MASK] sat.", "[CLS]a[SEP]", "[mask] the"]
    for name, lower in (("bert", True), ("bert-cased", False)):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        vocabulary = {piece: number for number, piece in enumerate(special + word_pieces(tokenizer))}
        tokenizer.model = models.WordPiece(vocabulary, unk_token="[UNK]")
        tokenizer.add_special_tokens([AddedToken(one, normalized=False, special=True) for one in special])
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        folder = fresh(name)
        save(tokenizer, folder)
        options = {"do_lower_case": lower, "strip_accents": None, "tokenize_chinese_chars": True, "model_max_length": 16}
        configure(folder, "BertTokenizer", roles, [(number, token(one)) for number, one in enumerate(special)], **options)
        same = golden_of(folder, f"WordPiece, {'lower-cased, without accents' if lower else 'cased'}", texts, PAIRS)

        if not lower:
            shutil.rmtree(folder)
        folder = fresh(name + "-files")
        tokenizer.model.save(str(folder))
        configure(folder, "BertTokenizer", roles, **options)
        golden_of_files(folder, "vocab.txt", texts, same)


def t5():
    # A small table in place of nmt_nfkc's 240 kB: white space, a ligature, dots, full-width letters.
    rules = {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u200b": " ", "ﬁ": "fi", "…": "...", "²": "2"}
    rules |= {chr(0xFF21 + i): chr(0x41 + i) for i in range(26)}
    table = "".join(f"{ord(one):X}\t{' '.join(f'{ord(c):X}' for c in other)}\n" for one, other in rules.items())
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)  # the model remembers the table's name
        Path("rules.tsv").write_text(table)
        model = sentence_pieces(CORPUS, vocab_size=180, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
                                normalization_rule_tsv="rules.tsv")
        os.chdir(before)
    extra = [f"<extra_id_{number}>" for number in range(4)]
    roles = {"additional_special_tokens": extra, "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    texts = ["The <extra_id_0> is <extra_id_1>.", "a</s>b", "<pad> x"]
    proto = ModelProto.FromString(model)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces] + [(one, 0.0) for one in reversed(extra)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens([AddedToken(one, normalized=False, special=True) for one in ["<pad>", "</s>", "<unk>", *extra]])
    folder = fresh("t5")
    save(tokenizer, folder)
    number = dict(zip((piece for piece, _ in pieces), range(len(pieces))))
    added = sorted((number[one], token(one)) for one in ["<pad>", "</s>", "<unk>", *extra])
    configure(folder, "T5Tokenizer", roles, added, extra_ids=4, model_max_length=512)
    same = golden_of(folder, "Unigram as of T5", texts, PAIRS)

    folder = fresh("t5-files")
    (folder / "spiece.model").write_bytes(model)
    configure(folder, "T5Tokenizer", roles, extra_ids=4, model_max_length=512)
    golden_of_pieces(folder, "a SentencePiece model (Unigram)", model, same)


LLAMA_CHAT = """{% if messages and messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set messages = messages[1:] %}{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + ('<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' if loop.first and system is defined else '') + message['content'].strip() + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
{{ ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- endif %}
{% endfor %}
"""


def llama():
    model = sentence_pieces(CORPUS, vocab_size=420, model_type="bpe", byte_fallback=True, split_digits=True,
                            normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98)
    texts = ["<s>a</s>", "a <unk> b", "</s>"]
    tokenizer = from_sentence_pieces(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(one, normalized=False, special=True) for one in ("<unk>", "<s>", "</s>")])
    folder = fresh("llama")
    library = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=2048)
    library.chat_template = LLAMA_CHAT
    library.save_pretrained(folder)
    save(tokenizer, folder)
    same = golden_of(folder, "BPE as of Llama 2; its chat template", texts, PAIRS, CHATS)

    folder = fresh("llama-files")
    (folder / "tokenizer.model").write_bytes(model)
    configure(folder, "LlamaTokenizer", {"bos_token": token("<s>"), "eos_token": token("</s>"), "unk_token": token("<unk>")},
              add_bos_token=True, add_eos_token=False, legacy=True, model_max_length=2048)
    golden_of_pieces(folder, "a SentencePiece model (BPE)", model, same)


GEMMA_CHAT = (
    "{{ bos_token }}{% if messages and messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"
)


def gemma():
    turns = ["<start_of_turn>", "<end_of_turn>"]
    model = sentence_pieces(CORPUS, vocab_size=420, model_type="bpe", byte_fallback=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                            normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False,
                            control_symbols=turns, character_coverage=0.98)
    tokenizer = from_sentence_pieces(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos>:0 $A:0 <bos>:1 $B:1", special_tokens=[("<bos>", 2)])
    # Gemma calls them so in tokenizer.json.
    text = tokenizer.to_str().replace('"<s>"', '"<bos>"').replace('"</s>"', '"<eos>"')
    tokenizer = Tokenizer.from_str(text)
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *turns]
    tokenizer.add_special_tokens([AddedToken(one, normalized=False, special=True) for one in special])
    folder = fresh("gemma")
    save(tokenizer, folder)
    configure(folder, "GemmaTokenizer", {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"},
              [(number, token(one)) for number, one in enumerate(special)], add_bos_token=True, add_eos_token=False,
              model_max_length=8192, chat_template=GEMMA_CHAT)
    golden_of(folder, "BPE as of Gemma: no space before the first word", ["<bos>a<eos>", "<start_of_turn>user\nhi<end_of_turn>\n"],
              PAIRS, CHATS)


def marian():
    folder = fresh("marian-files")
    pieces = []
    for side, corpus in (("source", CORPUS), ("target", GERMAN)):
        model = sentence_pieces(corpus, vocab_size=110, model_type="unigram", normalization_rule_name="identity")
        (folder / f"{side}.spm").write_bytes(model)
        pieces += [piece.piece for piece in ModelProto.FromString(model).pieces if piece.type == 1]
    names = ["</s>", "<unk>", *dict.fromkeys(pieces), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}, ensure_ascii=False) + "\n")
    roles = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    configure(folder, "MarianTokenizer", roles, source_lang="en", target_lang="de", separate_vocabs=False, model_max_length=512)
    library = transformers.MarianTokenizer.from_pretrained(folder)
    library.punc_normalizer = lambda text: text  # as where sacremoses is not installed
    encodings = []
    for text in [*TEXTS, "a</s>b", "<pad> x"]:
        full = library(text).input_ids
        target = library(text_target=text).input_ids
        encodings.append({
            "text": text, "ids": library(text, add_special_tokens=False).input_ids, "with_special": full, "as_target": target,
            "decoded": library.decode(target, clean_up_tokenization_spaces=False, use_source_tokenizer=False),
            "decoded_without_special": library.decode(
                target, skip_special_tokens=True, clean_up_tokenization_spaces=False, use_source_tokenizer=False),
        })
    golden(folder, "a SentencePiece model (Unigram) of each side, one vocabulary; decoded: as_target, by the target's; "
           "without the Moses normalisation of punctuation, which transformers adds where sacremoses is installed", encodings)


# What published templates are made of, beside those of the kinds above.
PARTS = [
    # The language: loops, names, macros, conditions inside expressions.
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}{{ loop.nextitem.role if loop.nextitem is defined else '-' }}|{% endfor %}",
    "{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex0 }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}|{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.role }}{{ loop.length }}{% else %}none{% endfor %}{% for m in [] %}{% else %}none{% endfor %}",
    "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}{{ ns.n }}",
    "{% set z = 1 %}{% for i in [1] %}{% set z = 2 %}{% endfor %}{{ z }}{% set x %}abc{{ 1 }}{% endset %}{{ x | length }}{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{%- macro f(n, b='d', c=none) -%}[{{ n }}{{ b }}{{ c }}]{% if n > 0 %}{{ f(n - 1, c='x') }}{% endif %}{%- endmacro -%}{{ f(2) }}{{ f(0) | length }}{{ f(0).strip('[') + 'y' }}",
    "{{ ('x' if false else 'y' if messages | length > 9 else 'z') + ('q' if not messages[0].foo else '') }}{{ 'a' if false }}",
    "{{ raise_exception('Only ' ~ messages | length) }}", "{{ messages[0].foo.bar }}", "{{ 'a' + 1 }}", "{{ unknown() }}",
    # What is not given.
    "{{ tools is none }}{{ tools is defined }}{{ not tools }}{{ tools }}{{ documents is none }}{{ documents }}{{ tools | default('d') }}{{ builtin_tools is defined }}{{ enable_thinking is defined }}{{ tools | tojson }}",
    "{{ tools | length }}", "{{ builtin_tools | tojson }}", "{{ {'a': x} | tojson }}",
    "{{ x is defined }}{{ none is defined }}{{ x is none }}{{ messages[0].foo is defined }}{{ messages[9] is defined }}{{ x | default('d') }}{{ '' | default('e', true) }}{{ x or 'f' }}{{ x }}",
    # Kinds of values.
    "{% for v in [{}, [], 'a', (1,), 1, none, true, x] %}{{ v is mapping }}{{ v is sequence }}{{ v is iterable }}{{ v is string }}{{ v is none }}{{ v is defined }}{{ v is number }}{{ v is boolean }}|{% endfor %}",
    "{{ 'a' in 'abc' }}{{ 'z' not in 'abc' }}{{ 'role' in messages[0] }}{{ 'x' in {} }}{{ 'system' in messages | map(attribute='role') | list }}",
    "{{ [1,2,3][::-1] }}{{ [1,2,3][1:] }}{{ 'abc'[::-1] }}{{ 'abc'[:-1] }}{{ 'abcdef'[1:4:2] }}{{ [1,2,3][-2:] }}{{ messages[-1].role }}",
    "{{ [1, 'a', none, true, {'k': [1.5]}, (1, 2)] }}{{ \"it's\" | string }}{{ [\"it's\", 'é', '\\n'] | string }}{{ 5 | string + 'a' }}{{ 7 // 2 }}{{ -7 % 3 }}{{ 4 / 2 }}",
    # Methods and filters.
    "{{ 'a</think>b'.split('</think>')[-1] }}|{{ 'a b  c '.split() }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a b c'.split(' ', maxsplit=1) }}|{{ ''.split(',') }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'a,b,c'.rsplit(',') }}|{{ ' a b c'.rsplit() }}|{{ 'a,b,c'.rsplit(sep=',', maxsplit=-1) }}",
    "{{ '  a '.strip() }}|{{ '\\n\\na\\n'.lstrip('\\n') }}|{{ 'a\\n\\n'.rstrip('\\n') }}|{{ 'xyaxy'.strip('xy') }}|{{ 'abc'.removeprefix('a') }}|{{ 'abc'.removesuffix('c') }}|{{ 'abc'.removeprefix('c') }}",
    "{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'abc'.partition('-') }}{{ 'abc'.rpartition('-')[2] }}",
    "{{ 'abc'.startswith('a') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('c') }}{{ 'aXbX'.replace('X', 'y', 1) }}{{ 'abc'.upper() }}{{ 'A'.lower() }}{{ 'aBC d'.capitalize() }}{{ ', '.join(['a', 'b']) }}{{ 'abc'.find('z') }}",
    "{{ \"don't stop o'neil 3rd x-y ABC\".title() }}|{{ \"don't x-y ABC\" | title }}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}{{ {'a': 1}.get('b', 'd') }}{{ {'a': 1}.get('b') }}{{ messages[0].get('content') }}{{ {'a': 1}.keys() | list }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first | trim }}{{ messages | rejectattr('role', 'in', ['user']) | list | length }}{{ messages | selectattr('tool_calls', 'defined') | list }}",
    "{{ messages | map(attribute='role') | join(', ') }}{{ [' a ', 'b'] | map('trim') | join('-') }}{{ [1,2,3] | select('odd') | list }}{{ messages | map(attribute='foo', default='D') | list }}{{ [3,1] | sort }}{{ 'a\\nb' | indent(2) }}",
    # JSON and dates.
    "{{ {'a': [1, 2.5, none, true, {'b': []}], 'é': '<\"&\\'>', 'c': {}} | tojson }}{{ {'a': [1, {'b': []}], 'c': {}} | tojson(indent=4) }}{{ [1, 2] | tojson(indent=0) }}",
    "{{ {'b': {'z': 1, 'y': [{'d': 1, 'c': 2}]}, 'a': 2} | tojson(indent=2, sort_keys=true) }}{{ 'é😀\\x7f' | tojson(ensure_ascii=true) }}{{ 'é' | tojson(ensure_ascii=False) }}{{ {'a': 1} | tojson(false, 2) }}{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}",
    "{{ strftime_now('%d %b %Y') | length }}{{ strftime_now('%Y-%m-%d') == strftime_now('%F') }}{{ strftime_now('%B %-d')[-2:].strip() == strftime_now('%e').strip() }}{% if strftime_now is defined %}y{% endif %}",
    # Space around blocks.
    "  {% if true %}\n  a\n  {% endif %}\nb\n", "x\n    {%- if true %}\n    a\n    {%- endif %}\n\nb", "x {% if true %} a {% endif %} b\n{# c #}\nd\n   {# e #}\nf",
    "{% for m in messages %}\n    {{- m.role }}\n    {%- if not loop.last %}\n        {{- ', ' }}\n    {%- endif %}\n{%- endfor %}\n\n", "a\n  {%+ if true %}b{% endif +%}\nc",
    "a\n\t{% if true %}\t\nb{% endif %}\t\nc", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc\rd", "{{ 'a' }}\n{{ 'b' }}\n\n{{ 'c' -}}\n d",
    # Marks around an answer.
    "  {% generation %}\n  x\n  {% endgeneration %}\n y", "a{%- generation %}\nx\n{%- endgeneration -%}\n y", "a {%generation%}x{%  endgeneration  -%} b",
    "{% set y = 1 %}{% for m in messages %}{% generation %}{% set y = 5 %}{{ m.role }}{{ loop.index }}{{ y }}{% endgeneration %}{% endfor %}{{ y }}{% generation %}{% set w = 5 %}{% endgeneration %}{{ w is defined }}",
]


def parts():
    """chat_templates.json: PARTS by transformers' own Jinja; null where it raises an error."""
    messages = [SYSTEM, {"role": "user", "content": "  Hi \"you\" <é> & 'x' "}]

    def rendered(template):
        try:
            return _compile_jinja_template(template).render(messages=messages, tools=None, documents=None, add_generation_prompt=True)
        except Exception:
            return None

    lines = ",\n".join(json.dumps([template, rendered(template)]) for template in PARTS)
    about = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    to = FOLDER.parent / "chat_templates.json"
    to.write_text(f'{{"about": {json.dumps(about)},\n"messages": {json.dumps(messages)},\n"templates": [\n{lines}\n]}}\n')


def main():
    transformers.logging.set_verbosity_error()
    for kind in (gpt2, roberta, chatml, bert, t5, llama, gemma, marian):
        kind()
    parts()
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    for path in files:
        path.chmod(0o644)
    print(f"{FOLDER}: {len(list(FOLDER.iterdir()))} kinds, {sum(path.stat().st_size for path in files)} bytes")


if __name__ == "__main__":
    main()
