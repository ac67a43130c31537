"""Golden scores of captions: BLEU-1 to BLEU-4 and CIDEr-D of pycocoevalcap 1.2, on words in lower case without punctuation. Its tokenizer
splits the contractions of the sixth case, and leaves the words of the others as they are. In those behind it n-grams of some length have no
match, or there are none.

Run in this folder: `pip install pycocoevalcap && python captions_golden.py`, which writes captions.json. The tokenizer needs Java.
"""

import contextlib
import io
import json
import pathlib
import random

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

WORDS = "a man woman dog two red blue ball park rides runs with on the street small large and plays bench".split()
CONTRACTIONS = (
    "there's a man's dog don't boys' 'stop' i'm you're they've he'll she'd won't cannot o'clock gonna gimme gotta lemme wanna "
    "wouldn't've isn't 's n't 5's not ' o'neil's that'll ain't player's"
).split()


def sentence(draw, words, length):
    return " ".join(draw.choice(words[: 6 + 2 * length]) for _ in range(length))


def changed(draw, known, text):
    words = [word if draw.random() < 0.75 else draw.choice(known) for word in text.split()]
    return " ".join(words[: draw.randint(max(1, len(words) - 2), len(words))])


def case(seed, images, most, words=WORDS):
    draw = random.Random(seed)
    captions, references = [], []
    for _ in range(images):
        first = sentence(draw, words, draw.randint(3, 14))
        references.append([first] + [changed(draw, words, first) for _ in range(draw.randint(0, most - 1))])
        captions.append(changed(draw, words, draw.choice(references[-1])))
    return scored(captions, references)


def scored(captions, references):
    said = [enumerate([one] for one in captions), enumerate(references)]
    said = [{i: [{"caption": text} for text in texts] for i, texts in of_images} for of_images in said]
    hypotheses, truth = [PTBTokenizer().tokenize(texts) for texts in said]
    with contextlib.redirect_stdout(io.StringIO()):
        bleu, _ = Bleu(4).compute_score(truth, hypotheses)
        cider, _ = Cider().compute_score(truth, hypotheses)
    return {"captions": captions, "references": references, "bleu": bleu, "cider_d": float(cider)}


# The tokenizer splits the last word of all in another way, so that must be no contraction (as it is with seed 6).
cases = [case(1, 12, 5), case(2, 40, 5), case(3, 25, 1), case(4, 6, 3), case(5, 60, 7), case(7, 40, 5, CONTRACTIONS)]
truth = [["a red ball on the street", "two dogs"], ["a man rides with the dog"], ["small blue bench"]]
for said in (
    ["a red ball", "the man rides", "a small bench"],  # three words at most
    ["a red dog the street", "dog a man with man", "small red blue bench"],  # pairs alone
    ["street red a", "dog rides two a the", "bench blue small"],  # words alone
    ["woman", "park plays", "woman plays large runs with"],  # nothing
    ["woman", "park", "runs"],  # nothing, and no pairs are there
):
    cases.append(scored(said, truth))
path = pathlib.Path(__file__).parent / "captions.json"
path.write_text(json.dumps(cases, indent=0) + "\n")
print([(round(100 * one["bleu"][3], 3), round(one["cider_d"], 4)) for one in cases])
