"""Golden scores of captions: BLEU-1 to BLEU-4 and CIDEr-D of pycocoevalcap 1.2 on text that is tokenised already.

Run in this folder: `pip install pycocoevalcap && python captions_golden.py`, which writes captions.json.
"""

import contextlib
import io
import json
import pathlib
import random

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider

WORDS = "a man woman dog two red blue ball park rides runs with on the street small large and plays bench".split()


def sentence(draw, length):
    return " ".join(draw.choice(WORDS[: 6 + 2 * length]) for _ in range(length))


def changed(draw, text):
    words = [word if draw.random() < 0.75 else draw.choice(WORDS) for word in text.split()]
    return " ".join(words[: draw.randint(max(1, len(words) - 2), len(words))])


def case(seed, images, most):
    draw = random.Random(seed)
    captions, references = [], []
    for _ in range(images):
        first = sentence(draw, draw.randint(3, 14))
        references.append([first] + [changed(draw, first) for _ in range(draw.randint(0, most - 1))])
        captions.append(changed(draw, draw.choice(references[-1])))
    hypotheses = {i: [one] for i, one in enumerate(captions)}
    truth = dict(enumerate(references))
    with contextlib.redirect_stdout(io.StringIO()):
        bleu, _ = Bleu(4).compute_score(truth, hypotheses)
        cider, _ = Cider().compute_score(truth, hypotheses)
    return {"captions": captions, "references": references, "bleu": bleu, "cider_d": float(cider)}


cases = [case(1, 12, 5), case(2, 40, 5), case(3, 25, 1), case(4, 6, 3), case(5, 60, 7)]
path = pathlib.Path(__file__).parent / "captions.json"
path.write_text(json.dumps(cases, indent=0) + "\n")
print([(round(100 * one["bleu"][3], 3), round(one["cider_d"], 4)) for one in cases])
