"""Models: those of `regard train`, those that are in the package, and folders of Hugging Face."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import _regard
from ._arrays import is_tensor
from ._given import list_of_texts, number, or_none, path_of, text_of, whole
from ._regard import Trace

EMBEDDED = "multi30k-en-de"


@dataclass(frozen=True)
class Written:
    """What a language model wrote."""

    text: str
    """The text after the prompt."""
    ended: str
    """end: the model ended it; stop: one of the texts of `stop` came; limit: `max_tokens`, or the model's context."""


@dataclass(frozen=True)
class Caption:
    """A sentence about an image."""

    text: str
    trace: Trace
    """Where the model looked for every word."""


class Model:
    """A model, ready for use; see `load`. Its calls release the interpreter and may come from several threads.

    Ctrl-C ends `translate` behind the 64 texts that it is at, and `generate` behind a token; `caption` and `look`, which are short, come to
    their end first.

    A call that a model of this kind cannot answer raises TypeError, which says what kind it is. A text of more tokens than the model reads
    raises ValueError; `translate`, and `look` of a translator, read its first tokens and give a UserWarning.
    """

    def __init__(self, inner: _regard.Model) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """What it was opened as."""
        return self._inner.name

    @property
    def kind(self) -> str:
        """translator, encoder-decoder, language model, encoder or captioner."""
        return self._inner.kind

    def translate(self, texts: str | Sequence[str], *, beam: int | None = None, prefix: str = "") -> Any:
        """The best translation of each text, as a list; of one text, as a text. For translators and encoder-decoders.

        A UserWarning names each text of which only the first tokens are read, and each translation that the length limit ended.

        Parameters
        ----------
        texts: sentences; those that are given together are computed together
        beam: width of the search; 1 is greedy; the model's own if left out
        prefix: what stands in front of every text of an encoder-decoder, such as "translate English to German: "
        """
        beam, prefix = or_none(_beam, "beam", beam), text_of("prefix", prefix)
        if isinstance(texts, str):
            return self._inner.translate([text_of("texts", texts)], beam, prefix)[0]
        return self._inner.translate(list_of_texts("texts", texts), beam, prefix)

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = 128,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
    ) -> Written:
        """Writes on from a prompt, as `regard generate` with the same options. For language models.

        What is left out is the model's own setting, that of its generation_config.json or else its config.json: the repetition penalty, and the
        others where it says "do_sample": true. Without one: temperature 0.8, top_k 40, top_p 0.95, min_p 0, repetition_penalty 1. A UserWarning
        names settings of these files that are not obeyed.

        Parameters
        ----------
        max_tokens: most tokens of the text
        temperature: divides the scores; 0 takes the likeliest token each time
        top_k, top_p, min_p: which tokens are drawn from: the k likeliest (0: all), the fewest whose probabilities sum to p, those at least
            p times as likely as the likeliest
        repetition_penalty: above 1, tokens that have occurred become less likely
        seed: where random numbers begin; the same seed gives the same text
        stop: texts before which it ends
        """
        given = {"temperature": temperature, "top_p": top_p, "min_p": min_p, "repetition_penalty": repetition_penalty}
        writing = SimpleNamespace(
            max_tokens=_count("max_tokens", max_tokens), top_k=or_none(_count, "top_k", top_k), seed=whole("seed", seed, most=2**64 - 1),
            stop=list_of_texts("stop", stop), **{name: or_none(number, name, x) for name, x in given.items()},
        )
        return Written(*self._inner.generate(text_of("prompt", prompt), writing))

    def caption(self, image: Any, *, beam: int | None = None) -> Caption:
        """A sentence about an image. For captioners.

        Parameters
        ----------
        image: the path of a file (PNG, JPEG, WebP), or pixels: an array [height, width, 3 or 1], uint8, or a PIL image of any mode of 8 bits;
            what is transparent stands over white, and EXIF's orientation counts, as in files
        """
        beam = or_none(_beam, "beam", beam)
        return Caption(*self._inner.caption(_picture(image), beam))

    def look(self, text: str, *, target: str | None = None) -> Trace:
        """What the model looks at while it reads a text, and, if it writes another, while it writes that.

        Parameters
        ----------
        target: what an encoder-decoder of Hugging Face writes; what it writes itself if left out
        """
        return self._inner.look(text_of("text", text), or_none(text_of, "target", target))

    def __repr__(self) -> str:
        return repr(self._inner)


def load(name: str | os.PathLike[str] = EMBEDDED) -> Model:
    """Opens a model. Ctrl-C ends the wait for it; a download that has begun goes on while the process runs.

    >>> regard.load().translate("A man in a red shirt is riding a bicycle.")     # doctest: +SKIP
    'Ein Mann in einem roten Hemd fährt Fahrrad.'

    Parameters
    ----------
    name: a file or a run folder of `regard train` (translation, captions, language models); a folder of a Hugging Face model (GPT-2, Llama,
        Mistral, Qwen, Phi-3, Gemma, BERT, RoBERTa, DistilBERT, T5, BART, Marian); a name in the local cache, or `hf:NAME`, which is
        downloaded if it is not there; or one of those in the package, `multi30k-en-de` (English to German, the default) and
        `scenes-captioner`

    Raises
    ------
    ValueError: what is wrong with its files; for a classifier, a detector or a model that answers questions about images, of `regard train`
        or the command's own, the command that uses it
    """
    return Model(_regard.open_model(text_of("name", path_of("name", name))))


def _count(name: str, x: Any) -> int:
    return whole(name, x, most=sys.maxsize)


def _beam(name: str, x: Any) -> int:
    return whole(name, x, 1, _regard.WIDEST_BEAM)


def _picture(image: Any) -> Any:
    if isinstance(image, (str, os.PathLike)):
        return path_of("image", image)
    if is_tensor(image):
        image = image.detach().cpu().numpy()
    pil = sys.modules.get("PIL.Image")
    if pil is not None and isinstance(image, pil.Image):
        from PIL import ImageOps

        # A photo held upright says so beside its pixels, if what is said there is EXIF at all.
        with contextlib.suppress(SyntaxError):
            image = ImageOps.exif_transpose(image)
        image = _opaque(image, pil)
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8:
        raise TypeError(f"`image` is of {pixels.dtype}, expected uint8, or the path of a file")
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim == 3 and pixels.shape[2] not in (1, 3):
        raise ValueError(f"`image` has {pixels.shape[2]} channels, expected 3 (red, green, blue) or 1 (grey)")
    return np.ascontiguousarray(pixels)


def _opaque(image: Any, pil: Any) -> Any:
    """A PIL image as red, green and blue over white, as files are read; grey stays, and so does what has more than 8 bits."""
    if image.mode.startswith(("I", "F")):
        return image
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = pil.alpha_composite(pil.new("RGBA", image.size, "white"), image)
    return image if image.mode in ("RGB", "L") else image.convert("RGB")
