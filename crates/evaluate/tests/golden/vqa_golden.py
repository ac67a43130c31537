"""Golden numbers of the accuracy of answers to questions about images, by its definition.

Run in this folder: `python vqa_golden.py`, which writes vqa.json.

The definition: Antol et al. 2015, section 4, over leave-one-out sets as the official evaluation takes them
(github.com/GT-Vision-Lab/VQA, PythonEvaluationTools/vqaEvaluation/vqaEval.py of c4e6a0e): an answer's punctuation, articles and numbers
are normalised; those of people lose their punctuation where people disagree. Written anew from what that file computes; exact fractions.
"""

import json
import pathlib
import random
import re
from fractions import Fraction

MARKS = ';/[]"{}()=+\\_-><@`,?!'
NUMBERS = dict(none="0", zero="0", one="1", two="2", three="3", four="4", five="5", six="6", seven="7", eight="8", nine="9", ten="10")
CONTRACTIONS = {verb + "nt": verb + "n't" for verb in "ai are ca could did does do had has have is might must need was were wo would".split()}


def punctuation(text):
    out = text
    for mark in MARKS:
        edge = mark + " " in text or " " + mark in text
        out = out.replace(mark, "" if edge or re.search(r"\d,\d", text) else " ")
    return re.sub(r"\.(?!\d)", "", out)


def normalized(text):
    words = (NUMBERS.get(word, word) for word in punctuation(text.replace("\n", " ").replace("\t", " ").strip()).lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ("a", "an", "the"))


def accuracy(answer, people):
    answer = normalized(answer)
    if len(set(people)) > 1:
        people = [punctuation(person) for person in people]
    shares = []
    for left_out in range(len(people)):
        others = people[:left_out] + people[left_out + 1:]
        shares.append(min(Fraction(1), Fraction(others.count(answer), 3)))
    return sum(shares) / len(shares)


random.seed(1)
TEXTS = ["yes", "no", "2", "two", "The red one", "a dog", "red, white", "red,white", "1,000", "3.5", "t-shirt", "t shirt", "dont", "don't",
         "no.", "left; right", "it's", "(none)", "  top left ", "A\tman\nthe", "", "?", "what? no", "4.", ".5", "Ten-speed bike", "an"]
cases = [{"answer": text, "normalized": normalized(text)} for text in TEXTS]
judged = []
for size in (10, 10, 10, 10, 10, 10, 3, 2):
    for text in TEXTS:
        pool = [normalized(text), text.strip(), *random.sample(TEXTS, 2)][: random.randint(1, 4)]
        people = [random.choice(pool) for _ in range(size)]
        judged.append({"answer": text, "people": people, "accuracy": float(accuracy(text, people))})
path = pathlib.Path(__file__).with_name("vqa.json")
path.write_text(json.dumps({"normalized": cases, "judged": judged}, indent=0, ensure_ascii=False) + "\n")
print(f"{path}: {len(judged)} cases, mean {sum(case['accuracy'] for case in judged) / len(judged):.3f}")
