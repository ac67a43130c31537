"""Makes searches.json: what `generate` of transformers writes with the encoder-decoders of pretrained/, by settings that
`generation_config.json` may have.

    venv/bin/python searches_golden.py        in a minute

Made with Python 3.11, torch 2.15.0, transformers 5.24.0. Each search has the settings beside those of the folder, the source, and all
hypotheses that are returned, best first: the tokens after the one that begins a text, with the one that ends it, and the score of a
beam. float64 finds the same tokens, so that none of them hangs on rounding.
"""

import json
from pathlib import Path

import torch
import transformers

TO = Path(__file__).resolve().parent / "pretrained"
CASES = ["t5", "t5-gated", "bart", "marian", "marian-two"]
SOURCES = [[7, 8, 9, 10, 11, 12, 13, 14], [20, 31, 6, 6], [44, 5, 30, 17, 9, 23]]
BEAM = {"num_beams": 4, "max_length": 14}


def settings(own, written, ends):
    """Settings that have an effect on a model whose greedy text is `written` and whose usual end is `own`."""
    several = {"eos_token_id": ends}
    words = [written[1:3], written[4:7], [written[0]]]
    yield {"max_length": 12}
    yield {"max_new_tokens": 12, "eos_token_id": [own, written[5]]}
    yield {"max_length": 12, "repetition_penalty": 1.6}
    yield {"max_length": 12, "bad_words_ids": words, "suppress_tokens": [written[3]]}
    yield {"max_length": 12, "begin_suppress_tokens": [written[0], 9], "no_repeat_ngram_size": 1, "forced_eos_token_id": own}
    yield {"max_length": 12, "forced_bos_token_id": 17, "begin_suppress_tokens": [written[0], written[1]], "no_repeat_ngram_size": 2}
    yield BEAM
    for stopping in (False, True, "never"):
        for penalty in (1.0, 0.0, 2.0, -1.0):
            yield BEAM | several | {"early_stopping": stopping, "length_penalty": penalty}
    yield BEAM | several | {"min_new_tokens": 6, "early_stopping": True}
    yield BEAM | several | {"min_length": 6, "no_repeat_ngram_size": 2, "forced_bos_token_id": 17}
    yield BEAM | several | {"repetition_penalty": 1.3, "forced_eos_token_id": own, "length_penalty": 2.0}
    yield BEAM | several | {"bad_words_ids": words, "renormalize_logits": True, "suppress_tokens": [written[3]]}
    yield {"num_beams": 3, "max_length": 25, "max_new_tokens": 10, "early_stopping": "never", "forced_eos_token_id": own}


@torch.inference_mode()
def search(model, source, asked):
    """The hypotheses of a search."""
    # The cache has no room for more layers in the decoder than in the encoder.
    config = transformers.GenerationConfig(**asked, use_cache=False)
    count = asked.get("num_beams", 1)
    found = model.generate(torch.tensor([source]), generation_config=config, num_return_sequences=count, output_scores=True,
                           return_dict_in_generate=True)
    ends = asked.get("eos_token_id", [model.generation_config.eos_token_id])
    scores = found.sequences_scores.tolist() if count > 1 else [None]
    all_ = []
    for row, score in zip(found.sequences[:, 1:].tolist(), scores, strict=True):
        length = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
        all_.append({"tokens": row[:length], "score": score})
    # Where there were fewer hypotheses than the beam is wide, the rest are fillings.
    return [one for one in all_ if one["score"] is None or one["score"] > -1e8]


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    searches, ended = [], 0
    for case in CASES:
        kind = "MarianMTModel" if case.startswith("marian") else "AutoModelForSeq2SeqLM"
        model, exact = (getattr(transformers, kind).from_pretrained(TO / case, dtype=dtype).eval()
                        for dtype in (torch.float32, torch.float64))
        own = model.generation_config.eos_token_id
        for number, source in enumerate(SOURCES):
            written = search(model, source, {"max_length": 14, "bad_words_ids": [[model.generation_config.pad_token_id]]})[0]["tokens"]
            common = search(model, source, BEAM)
            ends = [own, *dict.fromkeys([common[0]["tokens"][4], common[-1]["tokens"][7], common[1]["tokens"][-1]])]
            for place, asked in enumerate(settings(own, written, ends)):
                if number and place % 3 != number:
                    continue
                found = search(model, source, asked)
                again = search(exact, source, asked)
                same = [one["tokens"] for one in found] == [one["tokens"] for one in again]
                if not same:
                    print("rounding", case, source, asked)
                    continue
                ended += sum(one["tokens"][-1] in ends and len(one["tokens"]) < 13 for one in found)
                searches.append({"case": case, "settings": asked, "source": source, "found": found})
    about = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    rows = ",\n".join(json.dumps(one) for one in searches)
    text = json.dumps(about)[:-1] + ', "searches": [\n' + rows + "\n]}\n"
    (TO.parent / "searches.json").write_text(text)
    print(len(searches), "searches,", ended, "hypotheses that end,", len(text), "bytes")


if __name__ == "__main__":
    main()
