"""Scores of translations, to the last digit those of sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import _regard


@dataclass(frozen=True)
class Score:
    """A score from 0 to 100, and the settings that it was computed with."""

    score: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> Score:
    """BLEU of a corpus (Papineni et al. 2002); `references[r][i]` is reference r of `hypotheses[i]`, as in sacrebleu.

    Raises ValueError for references of another number than hypotheses.
    """
    return Score(*_regard.bleu(list(hypotheses), [list(stream) for stream in references], lowercase))


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, word_order: int = 0, lowercase: bool = False) -> Score:
    """chrF of a corpus (Popovic 2015), with `word_order` 2 chrF++; arguments as for `bleu`."""
    return Score(*_regard.chrf(list(hypotheses), [list(stream) for stream in references], word_order, lowercase))
