"""Golden numbers of the accuracy of answers to questions about images, by its definition.

Run in this folder: `python vqa_golden.py`, which writes vqa.json.

The definition: Antol et al. 2015, section 4, over leave-one-out sets as the official evaluation takes them
(github.com/GT-Vision-Lab/VQA, PythonEvaluationTools/vqaEvaluation/vqaEval.py of c4e6a0e): an answer's punctuation, articles and numbers
are normalised; those of people lose their punctuation where people disagree. Written anew from what that file computes; exact fractions.
That file itself (its functions and `evaluate`, under Python 2.7 and 3.11) gives the same texts and, but for the last bit, the same numbers
for all of these cases, and for 20,000 texts and 3,000 questions that were drawn from its words and marks.
"""

import json
import pathlib
import random
import re
from fractions import Fraction

MARKS = ';/[]"{}()=+\\_-><@`,?!'
NUMBERS = dict(none="0", zero="0", one="1", two="2", three="3", four="4", five="5", six="6", seven="7", eight="8", nine="9", ten="10")
CONTRACTIONS = dict(pair.split() for pair in """
aint ain't; arent aren't; cant can't; couldve could've; couldnt couldn't; couldn'tve couldn't've; couldnt've couldn't've
didnt didn't; doesnt doesn't; dont don't; hadnt hadn't; hadnt've hadn't've; hadn'tve hadn't've; hasnt hasn't; havent haven't
hed he'd; hed've he'd've; he'dve he'd've; hes he's; howd how'd; howll how'll; hows how's; Id've I'd've; I'dve I'd've; Im I'm
Ive I've; isnt isn't; itd it'd; itd've it'd've; it'dve it'd've; itll it'll; let's let's; maam ma'am; mightnt mightn't
mightnt've mightn't've; mightn'tve mightn't've; mightve might've; mustnt mustn't; mustve must've; neednt needn't; notve not've
oclock o'clock; oughtnt oughtn't; ow's'at 'ow's'at; 'ows'at 'ow's'at; 'ow'sat 'ow's'at; shant shan't; shed've she'd've
she'dve she'd've; she's she's; shouldve should've; shouldnt shouldn't; shouldnt've shouldn't've; shouldn'tve shouldn't've
somebody'd somebodyd; somebodyd've somebody'd've; somebody'dve somebody'd've; somebodyll somebody'll; somebodys somebody's
someoned someone'd; someoned've someone'd've; someone'dve someone'd've; someonell someone'll; someones someone's
somethingd something'd; somethingd've something'd've; something'dve something'd've; somethingll something'll; thats that's
thered there'd; thered've there'd've; there'dve there'd've; therere there're; theres there's; theyd they'd; theyd've they'd've
they'dve they'd've; theyll they'll; theyre they're; theyve they've; twas 'twas; wasnt wasn't; wed've we'd've; we'dve we'd've
weve we've; werent weren't; whatll what'll; whatre what're; whats what's; whatve what've; whens when's; whered where'd
wheres where's; whereve where've; whod who'd; whod've who'd've; who'dve who'd've; wholl who'll; whos who's; whove who've
whyll why'll; whyre why're; whys why's; wont won't; wouldve would've; wouldnt wouldn't; wouldnt've wouldn't've
wouldn'tve wouldn't've; yall y'all; yall'll y'all'll; y'allll y'all'll; yall'd've y'all'd've; y'alld've y'all'd've
y'all'dve y'all'd've; youd you'd; youd've you'd've; you'dve you'd've; youll you'll; youre you're; youve you've
""".replace("\n", ";").strip(";").split(";"))


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
cases = [{"answer": text, "normalized": normalized(text)} for text in [*TEXTS, *CONTRACTIONS, "He's SHOULDNT've", "dont, wont"]]
judged = []
for size in (10, 10, 10, 10, 10, 10, 3, 2):
    for text in TEXTS:
        pool = [normalized(text), text.strip(), *random.sample(TEXTS, 2)][: random.randint(1, 4)]
        people = [random.choice(pool) for _ in range(size)]
        judged.append({"answer": text, "people": people, "accuracy": float(accuracy(text, people))})
path = pathlib.Path(__file__).with_name("vqa.json")
path.write_text(json.dumps({"normalized": cases, "judged": judged}, indent=0, ensure_ascii=False) + "\n")
print(f"{path}: {len(judged)} cases, mean {sum(case['accuracy'] for case in judged) / len(judged):.3f}")
