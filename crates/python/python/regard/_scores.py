"""Scores of translations, to the last digit those of sacrebleu."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import _regard
from ._given import flag, list_of_texts, whole


@dataclass(frozen=True)
class Score:
    """A score from 0 to 100, and the settings that it was computed with."""

    score: float
    signature: str


@dataclass(frozen=True)
class Evaluation:
    """The scores of translations."""

    bleu: Score
    chrf: Score


def evaluate(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> Evaluation:
    """BLEU and chrF of a corpus, as `bleu` and `chrf` give them, whose arguments these are."""
    hypotheses, references = _lists(hypotheses, references)
    return Evaluation(bleu(hypotheses, references, lowercase=lowercase), chrf(hypotheses, references, lowercase=lowercase))


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> Score:
    """BLEU of a corpus (Papineni et al. 2002); `references[r][i]` is reference r of `hypotheses[i]`, as in sacrebleu.

    Raises ValueError for references of another number than hypotheses, and TypeError for what is no list of texts.
    """
    return Score(*_regard.bleu(*_lists(hypotheses, references), flag("lowercase", lowercase)))


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, word_order: int = 0, lowercase: bool = False) -> Score:
    """chrF of a corpus (Popovic 2015), with `word_order` 2 chrF++ (at most 64); arguments as for `bleu`."""
    return Score(*_regard.chrf(*_lists(hypotheses, references), whole("word_order", word_order, most=64), flag("lowercase", lowercase)))


def _lists(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    if isinstance(references, str) or not isinstance(references, Iterable):
        raise TypeError(f"`references` is a {type(references).__name__}, expected a list of lists of texts: one for each set of references")
    streams = [list_of_texts(f"references[{at}]", stream) for at, stream in enumerate(references)]
    hypotheses = list_of_texts("hypotheses", hypotheses)
    for at, stream in enumerate(streams):
        if len(stream) != len(hypotheses):
            raise ValueError(f"`references[{at}]` has {len(stream)} texts, expected {len(hypotheses)}: one for each of `hypotheses`")
    return hypotheses, streams
