"""Makes scores/: what transformers reads off the tiny checkpoints of pretrained/: perplexities in windows, free running, classes
of texts and tokens, answers, and the states of a word between the parts of a stack.

    python3 -m venv venv5 && venv5/bin/pip install torch==2.15.0 transformers==5.23.0
    python3 -m venv venv4 && venv4/bin/pip install torch==2.15.0 transformers==4.57.6
    venv5/bin/python scores_golden.py     writes tokenizer.json and scores.json
    venv4/bin/python scores_golden.py     writes answers.json: version 5 has no pipeline for questions any more

Made with Python 3.11. The tokenizer is WordPiece over 51 tokens, as many as the BERT checkpoints have.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, pipeline
from transformers import AutoModelForTokenClassification, GPT2LMHeadModel, BertForMaskedLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
MODELS, TO = HERE / "pretrained", HERE / "scores"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ("the a he she sat on by bank of river put money in her went to old new was and tall town hill stone bridge "
         "from bo ri gold green . , ?").split()
PIECES = ["##s", "##er", "##n", "##ing", "##k", "##d", "##o", "##y", "##e", "##t", "##l", "##i", "##a"]
LONG = ("the old town on the river was green. she sat on the stone bridge and put her money in a bank by the hill. "
        "he went from town to town, bon and rion, and the tall bridge was new.")


def tokenizer():
    vocabulary = {token: i for i, token in enumerate(SPECIAL + WORDS + PIECES)}
    assert len(vocabulary) == 51, len(vocabulary)
    around = {"[CLS]": 2, "[SEP]": 3}
    special = {token: {"id": token, "ids": [i], "tokens": [token]} for token, i in around.items()}

    def part(name, kind):
        return {"SpecialToken": {"id": name, "type_id": kind}} if name[0] == "[" else {"Sequence": {"id": name, "type_id": kind}}

    single = [part("[CLS]", 0), part("A", 0), part("[SEP]", 0)]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": token, "special": True, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False} for i, token in enumerate(SPECIAL)],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": single,
                           "pair": single + [part("B", 1), part("[SEP]", 1)], "special_tokens": special},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocabulary},
    }


def opened(length=16):
    names = {f"{role}_token": token for role, token in zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL)}
    return PreTrainedTokenizerFast(tokenizer_file=str(TO / "tokenizer.json"), model_max_length=length, **names)


def windows(model, ids, context, stride):
    """Hugging Face's "Perplexity of fixed-length models", but the losses of the tokens are kept."""
    found, done = [], 0
    for begin in range(0, len(ids), stride):
        end = min(begin + context, len(ids))
        part = torch.tensor([ids[begin:end]])
        with torch.no_grad():
            scores = torch.log_softmax(model(part).logits[0], -1)
        for at in range(max(done, begin + 1), end):
            row = scores[at - 1 - begin]
            found.append((-row[ids[at]].item(), int(row.argmax()) == ids[at]))
        if begin == 0 or stride < context:
            # The library's own loss, with the tokens that are not scored marked.
            labels = part.clone()
            labels[:, : done - begin if done > begin else 0] = -100
            with torch.no_grad():
                loss = model(part, labels=labels).loss.item()
            count = end - max(done, begin + 1)
            mean = sum(loss for loss, _ in found[-count:]) / count
            assert abs(loss - mean) < 1e-4, (loss, mean)
        done = end
        if end == len(ids):
            break
    return {"context": context, "stride": stride, "tokens": len(found), "loss": sum(loss for loss, _ in found),
            "correct": sum(right for _, right in found), "each": [loss for loss, _ in found]}


def free_running(model, rows, prompt):
    losses, correct = [], []
    for row in rows:
        own = list(row[:prompt])
        losses.append([])
        correct.append([])
        for token in row[prompt:]:
            with torch.no_grad():
                scores = torch.log_softmax(model(torch.tensor([own])).logits[0, -1], -1)
            best = int(scores.argmax())
            losses[-1].append(-scores[token].item())
            correct[-1].append(best == token)
            own.append(best)
    return {"prompt": prompt, "rows": rows, "losses": losses, "correct": correct}


def points(model, layers, parts, ids, places):
    """The mean state at `places` before, between and after the parts of each layer: `parts` are modules of a layer."""
    seen = {}
    hooks = []
    for number, layer in enumerate(layers):
        for name, (path, what) in parts.items():
            module = layer.get_submodule(path)

            def keep(_, inputs, output, key=(number, name), what=what):
                state = inputs[0] if what == "input" else output
                state = state[0] if isinstance(state, tuple) else state
                seen[key] = state[0, places].mean(0).tolist()

            hooks.append(module.register_forward_hook(keep))
    with torch.no_grad():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return [[seen[(number, name)] for name in parts] for number in range(len(layers))]


def tags(texts, generator):
    """Entities from the checkpoint's outputs; they are nearly all of one class, so also from outputs that are drawn."""
    cases = []
    for labels in (["O", "B-PER", "I-PER"], ["I-LOC", "O", "B-LOC"], ["X", "Y", "Z"], ["B-A", "I-A", "I-B"]):
        model = AutoModelForTokenClassification.from_pretrained(MODELS / "bert-tokens").eval()
        model.config.id2label = dict(enumerate(labels))
        tagger = pipeline("token-classification", model=model, tokenizer=opened(64), aggregation_strategy="simple")

        def shown(entities):
            return [{key: float(value) if key == "score" else value for key, value in entity.items() if key != "word"}
                    for entity in entities]

        [window] = tagger.preprocess(LONG, **tagger._preprocess_params)
        output = {key: window[key] for key in ("sentence", "input_ids", "offset_mapping", "special_tokens_mask")}
        logits = 3 * torch.randn(1, output["input_ids"].shape[1], 3, generator=generator)
        drawn = tagger.postprocess([output | {"logits": logits}], **tagger._postprocess_params)
        cases.append({"labels": labels, "found": [shown(tagger(text)) for text in texts], "logits": logits[0].tolist(),
                      "drawn": shown(drawn)})
    return cases


def scores():
    TO.mkdir(exist_ok=True)
    (TO / "tokenizer.json").write_text(json.dumps(tokenizer(), indent=1) + "\n")
    generator = torch.Generator().manual_seed(3)
    gpt2 = GPT2LMHeadModel.from_pretrained(MODELS / "gpt2").eval()
    ids = torch.randint(0, 53, (230,), generator=generator).tolist()
    rows = [torch.randint(0, 53, (26,), generator=generator).tolist() for _ in range(3)]
    result = {
        "long": LONG,
        "ids": ids,
        "perplexity": [windows(gpt2, ids, *size) for size in ((96, 48), (40, 10), (16, 15), (20, 1))],
        "free_running": free_running(gpt2, rows, 6),
    }

    texts = ["The bank of the river", "Bon put money in her town!", "", "banker"]
    classes = []
    for problem in ("single_label_classification", "multi_label_classification", "regression"):
        model = AutoModelForSequenceClassification.from_pretrained(MODELS / "bert-classes").eval()
        model.config.problem_type = problem
        found = pipeline("text-classification", model=model, tokenizer=opened(), top_k=None)(texts)
        classes.append({"problem": problem, "found": found})
    result |= {"texts": texts, "classes": classes, "tokens": tags(texts, generator)}

    bert = BertForMaskedLM.from_pretrained(MODELS / "bert").eval()
    ids = opened()("He sat on the banks of the river.")["input_ids"]
    of_bert = {"input": ("attention", "input"), "attention": ("attention", "output"), "feed_forward": ("output", "output")}
    of_gpt2 = {"input": ("ln_1", "input"), "attention": ("ln_2", "input")}
    words = {
        "bert": {"ids": ids, "places": [5, 6], "points": points(bert, bert.bert.encoder.layer, of_bert, ids, [5, 6])},
        "gpt2": {"ids": ids, "places": [3], "points": points(gpt2, gpt2.transformer.h, of_gpt2, ids, [3])},
    }
    result["words"] = words
    (TO / "scores.json").write_text(json.dumps(result) + "\n")


def answers():
    from transformers.pipelines.question_answering import QuestionAnsweringPipeline, select_starts_ends

    model = AutoModelForQuestionAnswering.from_pretrained(MODELS / "bert-answer").eval()
    asks = QuestionAnsweringPipeline(model=model, tokenizer=opened(), framework="pt")
    cases = []
    for question, context, stride in (("was?", "she sat on the bank.", 4), ("was?", LONG, 4), ("the bank?", LONG, 2),
                                      ("was she by the river?", LONG, 5)):
        found, null = [], 1000000
        example = {"question": question, "context": context}
        for window in asks.preprocess(example, max_seq_len=16, doc_stride=stride):
            output = asks.forward(window)
            ids = output["input_ids"][0].tolist()
            starts, ends, scores, null = select_starts_ends(
                output["start"], output["end"], output["p_mask"], output["attention_mask"].numpy(), null, 20, True, 6)
            spans = []
            for start, end, score in zip(starts.tolist(), ends.tolist(), scores.tolist()):
                first, last = asks.get_indices(output["encoding"], start, end, 1, True)
                spans.append({"start": start, "end": end, "score": score, "characters": [first, last]})
            found.append({"ids": ids, "types": output["token_type_ids"][0].tolist(), "spans": spans})
        cases.append({"question": question, "context": context, "overlap": stride, "windows": found, "no_answer": null})
    (TO / "answers.json").write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    sys.exit(scores() if transformers.__version__ >= "5" else answers())
