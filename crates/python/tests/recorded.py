"""Small models, what they read, and what they say of themselves (`attn_implementation="eager"`): what the tests of recorders share."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy as np  # noqa: E402


def small(kind, **more):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2, **more))
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2, **more))
    if kind == "mistral":
        return transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, num_key_value_heads=2, sliding_window=5, **more))
    if kind == "gemma2":
        return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**sizes, num_key_value_heads=2, head_dim=8, sliding_window=5, **more))
    if kind == "llama4":
        # A layer with chunks of 5 tokens, and one without positions that sees all.
        chunks = {"attention_chunk_size": 5, "no_rope_layers": [1, 0], "floor_scale": 4}
        experts = {"num_local_experts": 2, "intermediate_size_mlp": 48, "head_dim": 8}
        return transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**sizes, **chunks, **experts, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, **more))
    if kind == "bert":
        return transformers.BertModel(transformers.BertConfig(**sizes, **more))
    if kind == "vit":
        return transformers.ViTModel(transformers.ViTConfig(**{k: v for k, v in sizes.items() if k != "vocab_size"}, image_size=16, patch_size=4, **more))
    if kind == "t5":
        return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0, **more))
    if kind == "bart":
        return transformers.BartForConditionalGeneration(
            transformers.BartConfig(vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2, **more)
        )
    raise AssertionError(kind)


def inputs(kind):
    torch.manual_seed(3)
    if kind == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16)}
    ids = torch.randint(3, 64, (2, 9))
    keep = torch.ones_like(ids)
    keep[1, :3] = 0
    both = {"input_ids": ids, "attention_mask": keep}
    return {**both, "decoder_input_ids": torch.randint(3, 64, (2, 6))} if kind in ("t5", "bart") else both


KINDS = ["gpt2", "llama", "mistral", "gemma2", "llama4", "bert", "vit", "t5", "bart"]

GENERATED = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


def given(found):
    names = {"encoder.self": ("encoder_attentions", "attentions"), "decoder.self": ("decoder_attentions", "attentions"), "decoder.cross": ("cross_attentions",)}
    return {kind: next(found[name] for name in of if found.get(name) is not None) for kind, of in names.items() if any(found.get(name) is not None for name in of)}


def assert_weights(seen, truth, atol=5e-6, heads=slice(None)):
    """Every map is that of the truth, the outputs of an eager model."""
    expected = given(truth)
    assert seen.maps
    for one in seen.maps:
        for batch in range(one.shape[0]):
            wanted = expected[one.kind][one.layer][batch].numpy()[heads]
            found = one.weights(batch=batch)
            assert found.shape == wanted.shape, one
            np.testing.assert_allclose(found, wanted, atol=atol, err_msg=f"{one}")


def twin(model):
    """The same model, eager."""
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    return other


def of_text(model, ids, written):
    """What an eager twin looks at in a finished text."""
    arguments = {"input_ids": ids, "decoder_input_ids": written[:, :-1]} if model.config.is_encoder_decoder else {"input_ids": written[:, :-1]}
    with torch.no_grad():
        return twin(model)(**arguments, output_attentions=True)


class Twice(torch.nn.Module):
    """Attends some times in one run."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def forward(self, x, mask=None):
        for _ in range(self.times):
            x = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return x
