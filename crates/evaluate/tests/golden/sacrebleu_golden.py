#!/usr/bin/env python3
"""Writes sacrebleu.json: what sacrebleu computes on small corpora, for tests/sacrebleu.rs.

Run:  python3 -m venv venv && venv/bin/pip install sacrebleu==2.6.0 numpy==2.4.6
      venv/bin/python crates/evaluate/tests/golden/sacrebleu_golden.py   (not named sacrebleu.py: it would import itself)
Made with Python 3.11.7 (str.lower of Unicode 14), sacrebleu 2.6.0, regex 2026.11.15, numpy 2.4.6.
"""

import itertools
import json
import logging
import os
import random

import numpy
import regex
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

assert sacrebleu.__version__ == "2.6.0", sacrebleu.__version__
assert "SACREBLEU_SEED" not in os.environ
logging.getLogger("sacrebleu").setLevel(logging.ERROR)
rng = random.Random(20140901)

ENGLISH = """A man in a red shirt is riding a bicycle.
Two dogs are running on the beach!
It's 3,500.75 km from here -- isn't it?
"Stop," she said, "I've had enough of this."
The U.S. economy grew by 2.5% in 2019-20.
Mr. O'Neill paid $1,234.56 (or €1.100) for it.
A group of people standing in front of an igloo.
Several men in hard hats are operating a giant pulley system.
A little girl climbing into a wooden playhouse.
What's the e-mail of Smith & Sons: info@smith.co.uk?
He ran 10-12 miles; then 7.5 more...
In 1999. In 2,000. On 3.4.2014, at 12:30.""".split("\n")

GERMAN = """Ein Mann in einem roten Hemd fährt Fahrrad.
Zwei Hunde laufen am Strand entlang!
Es sind 3.500,75 km von hier – nicht wahr?
„Halt“, sagte sie, „ich habe genug davon.“
Die Straße ist 12,5 km lang; ÄRGERLICH für GROSSE Füße.
Eine Gruppe von Menschen steht vor einem Iglu.
Mehrere Männer mit Schutzhelmen bedienen ein Antriebsradsystem.
Ein kleines Mädchen klettert in ein Spielhaus aus Holz.
Im Jahr 1999. Am 3.4.2014 um 12:30 Uhr, ca. 5-10 °C.
Der 2. Platz: »Übergröße« (§ 5 Abs. 2) … oder 50 %?""".split("\n")

SCRIPTS = """猫は椅子の上で眠っています。
今天天气很好，我们去公园吧！价格是３，５００元。
今日は2014年9月1日です、気温は25.5度。
الرجل يركب دراجة، أليس كذلك؟ ١٢٫٥ كم.
שלום עולם: ״מה שלומך?״ 3.5%
Привет, мир! Это — тест №5 (10,5 руб.)
यह एक परीक्षण है। १२,३४५.६७ रुपये
ΟΔΥΣΣΕΥΣ ΣΑΣ Σ ΑΣ. ΚΑΙ, ΟΔΟΣ;
İstanbul ISPARTA ıssız DŽ ǅ ﬁ ﬀ ẞ
👩‍👩‍👧 sits 👍🏽 on 🇩🇪-flag ☂️ ©®™ 5€ £3.50 ¥
x² + ½·y ≥ √3 ⅷ ① 〇 ٣ ²³ 1⁄2
한국어 문장입니다. “정말?” 1,000원""".split("\n")

ODD = [
    "", " ", "\t", "   leading and trailing   ", "tabs\tand\u00a0no-break\u2003em\u3000ideographic",
    "control\x00\x01\x07\x1b characters\x7f", "separators\x1ca\x1db\x1ec\x1fd\x85e\u2028f\u2029g",
    "zero\u200bwidth\ufeffjoined\u2060text", "&quot;a&quot; &amp;amp; &lt;b&gt; &amp;lt;c&amp;gt; &apos;",
    "<skipped> a<skipped>b <SKIPPED>", "hyphen-\nated\nlines", "a.b,c.1,2.d,.,.3.,4", ".,.,.,", "1.2.3.4.,5",
    "1-2--3---a-b -1 -a 5- 5-.", "...", "?!?!", "-", "'", "''", "``a''", "(hi) [x] {y} <z> ~t~ a_b c^d e`f",
    "e\u0301 \u0301 a\u0308o\u0308", "\ufffd\U0010ffff\ue000", "\u202bمرحبا\u202c abc", "a  b   c", "\u00ad soft\u00adhyphen",
]

ALPHABET = [*"aaabbcABß.,-'\"&;:!?()/%$012 3   "] + ["，", "。", "、", "猫", "é", "e\u0301", "١", "½", "€", "©", "👍", "\u200d",
    "\u00a0", "\u3000", "\x1f", "\t", "„", "“", "—", "…", "Σ", "İ", "&amp;", "&quot;", "&lt;", "١٢", "٫", "\u0301"]


def noise(length):
    return "".join(rng.choice(ALPHABET) for _ in range(length))


def disturb(line, strength):
    words = line.split(" ")
    for _ in range(strength):
        at = rng.randrange(len(words))
        change = rng.randrange(6)
        if change == 0 and len(words) > 1:
            del words[at]
        elif change == 1:
            words.insert(at, rng.choice(words))
        elif change == 2:
            other = rng.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        elif change == 3:
            words[at] = words[at].upper() if rng.random() < 0.5 else words[at].lower()
        elif change == 4:
            words[at] = words[at].rstrip(".,!?。；") or "x"
        else:
            words[at] += rng.choice([".", ",", " -", "s", "1", " 2.5", "!"])
    return " ".join(words)


def corpus(name, lines, references, strength):
    return {
        "name": name,
        "hypotheses": [disturb(line, strength) for line in lines],
        "references": [[disturb(line, min(number, 2)) for line in lines] for number in range(references)],
    }


corpora = [
    corpus("english", ENGLISH, 1, 2),
    corpus("english, three references", ENGLISH, 3, 4),
    corpus("german", GERMAN, 1, 2),
    corpus("german, two references", GERMAN, 2, 3),
    corpus("scripts", SCRIPTS, 1, 1),
    corpus("scripts, two references", SCRIPTS, 2, 2),
    {"name": "odd", "hypotheses": ODD, "references": [ODD[1:] + ODD[:1]]},
    {"name": "odd, two references", "hypotheses": ODD, "references": [ODD[3:] + ODD[:3], ODD[:5] + [""] * (len(ODD) - 5)]},
    {"name": "identical", "hypotheses": ENGLISH, "references": [ENGLISH]},
    {"name": "identical, second of two", "hypotheses": GERMAN, "references": [GERMAN[1:] + GERMAN[:1], GERMAN]},
    {"name": "nothing shared", "hypotheses": ["aaa bbb ccc ddd", "eee fff"], "references": [["111 222 333 444", "555 666 777"]]},
    {"name": "empty hypotheses", "hypotheses": ["", "", " "], "references": [["a b c d e", "f", ""]]},
    {"name": "empty references", "hypotheses": ["a b c d e", "f", ""], "references": [["", "", ""]]},
    {"name": "all empty", "hypotheses": ["", ""], "references": [["", ""]]},
    {"name": "one word", "hypotheses": ["a"], "references": [["a"]]},
    {"name": "short lines", "hypotheses": ["a b", "c", "d e f"], "references": [["a b", "c d", "d e g"]]},
    {"name": "too long", "hypotheses": ["a b c d e f g h i j k l m n"], "references": [["a b c d e"]]},
    {"name": "closest length ties", "hypotheses": ["a b c d", "x y"], "references": [["a b c d e f", "x"], ["a b", "x y z"], ["a b c", "x y z w"]]},
    {"name": "clipping", "hypotheses": ["the the the the the the the", "a b a b a b a b"], "references": [["the cat is on the mat", "a b a b c"], ["there is a the cat the the", "b a b a b a"]]},
]
for number in range(3):
    references = number + 1
    base = [noise(rng.choice([0, 1, 2, 3, 5, 8, 13, 30, 60])) for _ in range(20)]
    swap = lambda line: line[: len(line) // 2] + noise(rng.randrange(6)) + line[len(line) // 2 :]
    corpora.append({"name": f"noise {references}", "hypotheses": base,
                    "references": [[swap(line) if rng.random() < 0.8 else noise(12) for line in base] for _ in range(references)]})
    base = [noise(1 + rng.randrange(40))]
    corpora.append({"name": f"noise, one line {references}", "hypotheses": base, "references": [[swap(base[0])] for _ in range(references)]})

BLEU_OPTIONS = [dict(tokenize=tok, lowercase=lc) for tok in ["13a", "none", "intl", "char"] for lc in [False, True]] + [
    dict(smooth_method="floor"), dict(smooth_method="floor", smooth_value=0.01, tokenize="char"),
    dict(smooth_method="add-k"), dict(smooth_method="add-k", smooth_value=0.5, tokenize="intl"),
    dict(smooth_method="none"), dict(effective_order=True), dict(effective_order=True, smooth_method="floor"),
    dict(max_ngram_order=2, tokenize="none"), dict(max_ngram_order=6, smooth_method="add-k", lowercase=True),
]
CHRF_OPTIONS = [dict(), dict(lowercase=True), dict(word_order=1), dict(word_order=2), dict(word_order=2, lowercase=True),
                dict(whitespace=True), dict(eps_smoothing=True), dict(eps_smoothing=True, word_order=2),
                dict(char_order=3, beta=1), dict(char_order=8, beta=3, word_order=3)]

for entry in corpora:
    hypotheses, references = entry["hypotheses"], entry["references"]
    entry["bleu"], entry["chrf"] = [], []
    for options in BLEU_OPTIONS:
        metric = BLEU(**options)
        stats = metric._extract_corpus_statistics(hypotheses, references)
        sums = [sum(column) for column in zip(*stats)]
        score = metric.corpus_score(hypotheses, references)
        entry["bleu"].append([score.score, sums, score.precisions, score.bp, score.format(2, signature=metric.get_signature().format())])
    for options in CHRF_OPTIONS:
        metric = CHRF(**options)
        stats = metric._extract_corpus_statistics(hypotheses, references)
        sums = [sum(column) for column in zip(*stats)]
        score = metric.corpus_score(hypotheses, references)
        entry["chrf"].append([score.score, sums, score.format(2, signature=metric.get_signature().format())])

sentences = []
for entry in corpora[:8] + corpora[-6:]:
    for hypothesis, *references in itertools.islice(zip(entry["hypotheses"], *entry["references"]), 12):
        bleu = BLEU(effective_order=True).sentence_score(hypothesis, references).score
        chrf = CHRF(word_order=2).sentence_score(hypothesis, references).score
        sentences.append([entry["name"], bleu, chrf])

tokenised = []
for line in ODD + SCRIPTS + GERMAN[:5] + ENGLISH[:6] + [noise(40) for _ in range(60)]:
    tokenised.append([line] + [BLEU(tokenize=tok).tokenizer(line) for tok in ["13a", "intl", "char"]])
lowered = [[line, line.lower()] for line in SCRIPTS[7:9] + ODD + ["ΑΣ\u0301", "Σ.Σ", "ΑΣ'Α", "ΑΣ' ", "A\u03a3\u00ad", "1Σ"]]

printed = []
for metric in [BLEU(), BLEU(lowercase=True, tokenize="intl", smooth_method="add-k"), CHRF(), CHRF(word_order=2)]:
    for width, resamples in [(1, 1), (4, 1), (2, 200)]:
        score = metric.corpus_score(corpora[1]["hypotheses"], corpora[1]["references"], n_bootstrap=resamples)
        signature = metric.get_signature()
        printed.append([width, resamples, score.format(width, signature=signature.format()), score.format(width, True),
                        score.format(width, signature=signature.format(), is_json=True), signature.format(short=True)])

lines = ENGLISH + GERMAN + ENGLISH[::-1] + GERMAN[3:] + ENGLISH[2:7]
systems = [[disturb(line, strength) for line in lines] for strength in [3, 3, 4, 6]]
paired = []
for metric, samples in [(BLEU(), 1000), (BLEU(tokenize="char", lowercase=True), 150), (CHRF(), 150), (CHRF(word_order=2), 1000)]:
    named = [(f"system {number}", system) for number, system in enumerate(systems)]
    test = PairedTest(named, {"metric": metric}, [lines], test_type="bs", n_samples=samples)
    signatures, results = test()
    (name, signature), = signatures.items()
    rows = [[result.score, float(result.mean), float(result.ci), result.p_value] for result in results[name]]
    paired.append([samples, name, signature.format(), rows])

output = {
    "versions": {"sacrebleu": sacrebleu.__version__, "regex": regex.__version__, "numpy": numpy.__version__},
    "corpora": corpora, "sentences": sentences, "tokenised": tokenised, "lowered": lowered, "printed": printed,
    "paired": {"references": lines, "systems": systems, "results": paired},
}
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sacrebleu.json")
with open(path, "w", encoding="utf-8") as file:
    json.dump(output, file, ensure_ascii=True, separators=(",", ":"))
    file.write("\n")
print(path, os.path.getsize(path), "bytes")
