"""BertViz' side of viewer.py: the model, and BertViz' own pages of what it looks at.

    python3 bench/peers/viewer_bertviz.py --folder FOLDER --tokens N PAGE...

Writes into FOLDER, if they are not there, a GPT-2 of 12 layers of 12 heads with random weights and its tokenizer of words, and the page
of each PAGE: `head` and `model` are BertViz' head_view and model_view, `head-1` and `model-1` the same of the first layer alone.
Prints the bytes of each page.
"""

import argparse
import json
from pathlib import Path

WORDS = 1000


def words(tokens):
    """A text of so many tokens, some of them repeated."""
    return " ".join(f"w{(i * i + 7 * i) % WORDS}" for i in range(tokens))


def make(folder):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(1)
    # Weights larger than those a training begins with: with them, attention is not uniform.
    config = GPT2Config(vocab_size=WORDS + 1, n_layer=12, n_head=12, n_embd=768, initializer_range=0.06, bos_token_id=WORDS, eos_token_id=WORDS)
    GPT2LMHeadModel(config).save_pretrained(folder)
    vocabulary = {f"w{i}": i for i in range(WORDS)} | {"<end>": WORDS}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--tokens", required=True, type=int)
    parser.add_argument("pages", nargs="*")
    options = parser.parse_args()
    if not (options.folder / "tokenizer.json").exists():
        make(options.folder)
    paths = {page: options.folder / f"bertviz-{page}-{options.tokens}.html" for page in options.pages}
    attention = None
    for page, path in paths.items():
        if path.exists():
            continue
        import bertviz
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if attention is None:
            tokenizer = AutoTokenizer.from_pretrained(options.folder)
            model = AutoModelForCausalLM.from_pretrained(options.folder, attn_implementation="eager").eval()
            inputs = tokenizer(words(options.tokens), return_tensors="pt")
            with torch.no_grad():
                attention = model(**inputs, output_attentions=True).attentions
            tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        name, _, first = page.partition("-")
        view = {"head": bertviz.head_view, "model": bertviz.model_view}[name]
        path.write_text(view(attention, tokens, include_layers=[0] if first else None, html_action="return").data)
    print(json.dumps({page: path.stat().st_size for page, path in paths.items()}))


if __name__ == "__main__":
    main()
