"""BLEU and chrF, to the last digit those of sacrebleu."""

import random

import pytest

import regard

sacrebleu = pytest.importorskip("sacrebleu")

PIECES = ["a", "The", "dog", "runs", ",", ".", "3.5", "1,000", "\"so\"", "Müller-Lüdenscheid", "&amp;", "don't", "日本", "…", "x-y", "(no)", "50%", "é", "A.B."]


def corpus(seed):
    """Sentences, three references each, near the sentences and not."""
    draw = random.Random(seed)
    sentence = lambda: " ".join(draw.choices(PIECES, k=draw.randint(0, 14)))  # noqa: E731

    def near(text):
        words = [word for word in text.split(" ") if draw.random() > 0.2]
        return " ".join(words + draw.choices(PIECES, k=draw.randint(0, 2)))

    hypotheses = [sentence() for _ in range(40)]
    return hypotheses, [[near(text) for text in hypotheses], [sentence() for _ in hypotheses], [near(text) for text in hypotheses]]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_bleu_is_sacrebleus(seed, lowercase):
    hypotheses, references = corpus(seed)
    for streams in (references, references[:1]):
        found = regard.bleu(hypotheses, streams, lowercase=lowercase)
        assert found.score == sacrebleu.corpus_bleu(hypotheses, streams, lowercase=lowercase).score
        assert f"case:{'lc' if lowercase else 'mixed'}" in found.signature


def test_bleu_and_chrf_come_together():
    hypotheses, references = corpus(7)
    found = regard.evaluate(hypotheses, references, lowercase=True)
    assert found.bleu == regard.bleu(hypotheses, references, lowercase=True)
    assert found.chrf == regard.chrf(hypotheses, references, lowercase=True)


@pytest.mark.parametrize(
    "hypotheses, references, named",
    [
        ("abc", [["a", "b", "c"]], "`hypotheses` is one text"),
        (["ab c", "d e"], ["ab", "cd"], r"`references\[0\]` is one text"),
        (["ab c"], "ab c", "`references` is a str"),
        (["ab c"], [3], r"`references\[0\]` is a int"),
        (3, [["a"]], "`hypotheses` is a int"),
        ([3], [["a"]], r"`hypotheses\[0\]` is a int"),
    ],
)
@pytest.mark.parametrize("score", [regard.bleu, regard.chrf, regard.evaluate])
def test_texts_in_place_of_lists_are_refused(score, hypotheses, references, named):
    with pytest.raises(TypeError, match=named):
        score(hypotheses, references)


def test_an_order_of_words_that_is_none_is_named():
    with pytest.raises(ValueError, match="`word_order` is -1"):
        regard.chrf(["a"], [["a"]], word_order=-1)
    with pytest.raises(TypeError, match="`word_order`"):
        regard.chrf(["a"], [["a"]], word_order=0.5)


@pytest.mark.parametrize("word_order", [0, 2])
@pytest.mark.parametrize("seed", range(5))
def test_chrf_is_sacrebleus(seed, word_order):
    hypotheses, references = corpus(seed)
    for streams in (references, references[:1]):
        found = regard.chrf(hypotheses, streams, word_order=word_order)
        assert found.score == sacrebleu.corpus_chrf(hypotheses, streams, word_order=word_order).score
