"""What models of transformers and modules of one's own attend to, against the weights that they give themselves (`attn_implementation="eager"`)."""

import copy
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy as np  # noqa: E402

import regard  # noqa: E402
from test_record_torch import Plain  # noqa: E402


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


KINDS = ["gpt2", "llama", "mistral", "gemma2", "bert", "vit", "t5", "bart"]


def given(found):
    names = {"encoder.self": ("encoder_attentions", "attentions"), "decoder.self": ("decoder_attentions", "attentions"), "decoder.cross": ("cross_attentions",)}
    return {kind: next(found[name] for name in of if found.get(name) is not None) for kind, of in names.items() if any(found.get(name) is not None for name in of)}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_are_the_models_and_its_output_stays(kind, padded):
    torch.manual_seed(0)
    model = small(kind).eval()
    arguments = inputs(kind)
    if not padded:
        arguments.pop("attention_mask", None)
    with torch.no_grad():
        plain = model(**arguments)
        before = model.config._attn_implementation
        with regard.record(model) as seen:
            recorded = model(**arguments)
        assert model.config._attn_implementation == before
        model.set_attn_implementation("eager")
        eager = model(**arguments, output_attentions=True)
    assert torch.equal(plain[0], recorded[0])
    expected = given(eager)
    assert seen.maps
    for one in seen.maps:
        truth = expected[one.kind if one.kind in expected else "decoder.self"][one.layer]
        for batch in range(2):
            found = one.weights(batch=batch)
            wanted = truth[batch].numpy()
            # A query of the padding attends to nothing that matters; implementations differ there.
            real = wanted.shape[1] - (3 if padded and batch == 1 and wanted.shape[1] == 9 else 0)
            np.testing.assert_allclose(found[:, -real:], wanted[:, -real:], atol=2e-6, err_msg=f"{one}")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "bart", "t5"])
def test_generation_is_recorded(kind):
    torch.manual_seed(0)
    model = small(kind).eval()
    ids = inputs(kind)["input_ids"][:1]
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, **options)
    with regard.record(model) as seen:
        written = model.generate(ids, **options)
    assert torch.equal(plain, written)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        if kind in ("bart", "t5"):
            eager = model(input_ids=ids, decoder_input_ids=written[:, :-1], output_attentions=True)
        else:
            eager = model(written[:, :-1], output_attentions=True)
    for one in seen.maps:
        wanted = given(eager)[one.kind][one.layer][0].numpy()
        found = one.weights()
        assert found.shape == wanted.shape, one
        np.testing.assert_allclose(found, wanted, atol=5e-6, err_msg=f"{one}")
        assert one.entropy().shape == wanted.shape[:2]
        weights, keys = one.top(2)
        np.testing.assert_allclose(weights[..., 0], wanted.max(-1), atol=5e-6)
        assert (keys[..., 0] == wanted.argmax(-1)).mean() > 0.99


def test_beam_search_is_refused_where_the_cache_is_reordered():
    torch.manual_seed(0)
    model = small("gpt2").eval()
    with regard.record(model) as seen:
        model.generate(inputs("gpt2")["input_ids"][:1], num_beams=4, max_new_tokens=12, do_sample=False, pad_token_id=0)
    try:
        weights = seen.weights(0)
    except ValueError as error:
        assert "beam search" in str(error)
    else:
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


GENERATED = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


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


def test_models_of_several_implementations_are_recorded_beside_each_other():
    torch.manual_seed(0)
    eager, sdpa = small("gpt2", attn_implementation="eager").eval(), small("gpt2", attn_implementation="sdpa").eval()
    ids = inputs("gpt2")["input_ids"]
    with torch.no_grad():
        plain = eager(ids)[0], sdpa(ids)[0]
        with regard.record(eager) as one, regard.record(sdpa) as other:
            assert (eager.config._attn_implementation, sdpa.config._attn_implementation) == ("eager", "sdpa")
            recorded = eager(ids)[0], sdpa(ids)[0]
        assert all(torch.equal(x, y) for x, y in zip(plain, recorded))
        assert_weights(one, eager(ids, output_attentions=True))
        assert_weights(other, twin(sdpa)(ids, output_attentions=True))


def test_a_model_that_asks_for_its_implementation_stays_the_same():
    torch.manual_seed(0)
    model = small("gpt2", attn_implementation="eager", reorder_and_upcast_attn=True, scale_attn_by_inverse_layer_idx=True).half().eval()
    ids = inputs("gpt2")["input_ids"]
    with torch.no_grad():
        plain = model(ids)[0]
        with regard.record(model) as seen:
            assert torch.equal(plain, model(ids)[0])
    # It computes attention by itself.
    with pytest.raises(ValueError, match="AttentionInterface"):
        seen.weights(0)


def test_a_model_is_recorded_twice_and_others_are_not():
    model = small("llama").eval()
    other = type(model)(model.config).eval()
    ids = inputs("llama")["input_ids"]
    with torch.no_grad():
        with regard.record(model) as one, regard.record(model) as two:
            model(ids)
            other(ids)
            copied = copy.deepcopy(model)
            copied(ids)
        for a, b in zip(one.maps, two.maps, strict=True):
            np.testing.assert_array_equal(a.weights(), b.weights())
        assert [[x.tolist() for x in layer._ids] for layer in one.maps] == [[ids.tolist()]] * 2
        copied(ids)
        recorder = regard.record(model)
        model.add_module("more", small("llama"))
        with recorder as seen:
            model.more(ids)
    assert [one.name for one in seen.maps] == ["more.model.layers.0.self_attn", "more.model.layers.1.self_attn"]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "t5"])
def test_static_caches_are_recorded(kind, implementation):
    torch.manual_seed(0)
    model = small(kind, attn_implementation=implementation).eval()
    ids = inputs(kind)["input_ids"]
    with regard.record(model) as seen:
        model.generate(ids[:, :7], **GENERATED, cache_implementation="static")
        written = model.generate(ids[:1], **GENERATED, cache_implementation="static")
    assert torch.equal(written, model.generate(ids[:1], **GENERATED, cache_implementation="static"))
    assert_weights(seen, of_text(model, ids[:1], written))


@pytest.mark.parametrize("prompt", [4, 5, 7, 9])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_static_cache_is_followed_step_by_step(kind, prompt):
    torch.manual_seed(0)
    model = small(kind).eval()
    ids = inputs(kind)["input_ids"][:1]
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    ends = range(prompt, 10)
    with torch.no_grad(), regard.record(model) as seen:
        for start, end in zip([0, *ends], ends):
            model(ids[:, start:end], past_key_values=cache)
        if (kind, prompt) == ("mistral", 5):
            # The prompt filled the window, and the steps wrote over it.
            with pytest.raises(ValueError, match="changed on the way"):
                seen.weights(0)
            return
        assert_weights(seen, twin(model)(ids, output_attentions=True))


@pytest.mark.parametrize("heads", [None, [2, 0]])
@pytest.mark.parametrize("kind", ["t5", "bart", "llama"])
def test_the_last_of_several_texts_is_kept(kind, heads):
    torch.manual_seed(0)
    model = small(kind).eval()
    ids = inputs(kind)["input_ids"]
    with regard.record(model, heads=heads) as seen:
        model.generate(ids, **GENERATED)
        model.generate(ids[:1], **GENERATED)
        written = model.generate(ids[:1], **GENERATED)
    assert_weights(seen, of_text(model, ids[:1], written), heads=slice(None) if heads is None else heads)
    with torch.no_grad(), regard.record(model) as seen:
        model(**{name: x for name, x in inputs(kind).items() if name != "attention_mask"})
        more = {"decoder_input_ids": ids[:, :1]} if kind != "llama" else {}
        model(ids[:, :1], **more)
    assert all(one.shape[2:] == (1, 1) for one in seen.maps)


@pytest.mark.parametrize("heads", [None, [1]])
def test_beam_search_is_refused_for_cross_attention_too(heads):
    torch.manual_seed(0)
    model = small("bart").eval()
    with regard.record(model, heads=heads) as seen:
        model.generate(inputs("bart")["input_ids"][:1], num_beams=4, max_new_tokens=12, do_sample=False)
        for one in seen.maps:
            if one.kind == "encoder.self":
                one.weights()
                continue
            with pytest.raises(ValueError, match="beam search"):
                one.weights()
        # A text that follows is recorded again.
        ids = inputs("bart")["input_ids"][:1]
        written = model.generate(ids, **GENERATED)
    assert_weights(seen, of_text(model, ids, written), heads=slice(None) if heads is None else heads)


def test_flash_attention_takes_padding_and_windows(monkeypatch):
    """A function with the arguments of flash attention: it takes masks `[batch, keys]`, and windows by themselves."""

    def flash(module, query, key, value, attention_mask, scaling=None, sliding_window=None, **_):
        queries, keys = query.shape[2], key.shape[2]
        own, at = torch.arange(keys - queries, keys)[:, None], torch.arange(keys)
        shown = at <= own
        if sliding_window is not None:
            shown = shown & (own - at < sliding_window)
        if attention_mask is not None:
            shown = shown & attention_mask[:, None, None].bool()
        shown = torch.broadcast_to(shown, (query.shape[0], 1, queries, keys))
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=shown, scale=scaling, enable_gqa=True)
        return output.transpose(1, 2), None

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "flash_attention_2", flash)
    torch.manual_seed(0)
    model = small("mistral").eval()
    eager = twin(model)
    model.config._attn_implementation_internal = "flash_attention_2"
    keep = torch.ones(2, 9, dtype=torch.long)
    keep[1, :3] = 0
    ids = inputs("mistral")["input_ids"]
    with torch.no_grad():
        with regard.record(model) as seen, regard.record(model, rows=[4, -1]) as rows:
            model(ids, attention_mask=keep)
        truth = eager(ids, attention_mask=keep, output_attentions=True).attentions
        for one, some in zip(seen.maps, rows.maps, strict=True):
            for batch, first in ((0, 0), (1, 3)):
                wanted = truth[one.layer][batch].numpy()
                np.testing.assert_allclose(one.weights(batch=batch)[:, first:], wanted[:, first:], atol=2e-6)
                np.testing.assert_allclose(some.weights(batch=batch), wanted[:, [4, 8]], atol=2e-6)
        # The window is one that a long trace keeps.
        assert seen.maps[0]._long(0)[2]["left"] == 4
        with regard.record(model) as seen:
            model(ids)
        assert_weights(seen, eager(ids, output_attentions=True))
        assert seen.maps[0]._long(0)[2]["left"] == 4
        # Texts of 4 and 5 tokens; of 1, 1 and 7.
        for positions in ([0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 0, 0, 1, 2, 3, 4, 5, 6]):
            with regard.record(model) as seen:
                model(ids[:1], position_ids=torch.tensor([positions]))
            with pytest.raises(ValueError, match="packed"):
                seen.weights(0)


def test_masks_of_each_head_are_chosen_with_the_heads():
    model = Twice(1)
    query, mask = torch.randn(1, 4, 5, 8), torch.rand(1, 4, 5, 5) > 0.4
    mask[..., 0] = True
    for mask in (mask, torch.randn(4, 5, 5)):
        with regard.record(model) as seen, regard.record(model, heads=[3, 2]) as some:
            model(query, mask)
        np.testing.assert_allclose(some.weights(0), seen.weights(0)[[3, 2]], atol=1e-6)


def test_a_module_that_runs_several_times_has_an_entry_for_each():
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "embedding_size": 16, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = transformers.AlbertModel(transformers.AlbertConfig(**sizes)).eval()
    ids = inputs("bert")["input_ids"]
    with torch.no_grad():
        plain = model(ids)[0]
        with regard.record(model) as seen:
            model(ids[:, :4])
            assert torch.equal(plain, model(ids)[0])
        assert [one.layer for one in seen.maps] == [0, 1, 2]
        assert_weights(seen, twin(model)(ids, output_attentions=True))
    model = Twice(2)
    with regard.record(model) as seen:
        model(torch.randn(1, 4, 5, 8))
    assert [one.name for one in seen.maps] == ["", " (2)"]


def test_windows_of_one_run_are_blocks_of_one_map():
    class Windows(torch.nn.Module):
        """As the vision of Qwen2.5-VL: window by window."""

        is_causal, num_key_value_groups = False, 1

        def forward(self, x, windows):
            attend = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)
            return torch.cat([attend(self, y, y, y, attention_mask=None, scaling=None)[0] for y in x.split(windows, 2)], 1)

    class Model(torch.nn.Module):
        """Counts as one of transformers."""

        config = SimpleNamespace(is_encoder_decoder=False)

        def __init__(self):
            super().__init__()
            self.attention = Windows()

        def set_attn_implementation(self, _):
            raise AssertionError("names stay")

        def forward(self, x, windows):
            return self.attention(x, windows)

    model, x, windows = Model(), torch.randn(1, 2, 9, 8), [4, 3, 2]
    with regard.record(model) as seen:
        model(x, [9])
        model(x, windows)
    of_window = torch.repeat_interleave(torch.arange(3), torch.tensor(windows))
    wanted = (x @ x.mT * 8**-0.5).masked_fill(of_window[:, None] != of_window, -torch.inf).softmax(-1)[0]
    np.testing.assert_allclose(seen.weights(0), wanted.numpy(), atol=1e-6)


class Around(torch.nn.Module):
    """A plain module with a model of transformers inside."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model.generate(ids, **GENERATED)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_model_of_transformers_inside_of_a_plain_module_is_recorded(kind):
    torch.manual_seed(0)
    model = small(kind).eval()
    ids = inputs(kind)["input_ids"][:1]
    for inside in (True, False):
        around = Around(model)
        with regard.record(around) as seen:
            written = around(ids) if inside else model.generate(ids, **GENERATED)
        assert_weights(seen, of_text(model, ids, written))


def test_a_cache_of_a_plain_module_is_followed():
    class Decoder(torch.nn.Module):
        def forward(self, x, before):
            keys = x if before is None else torch.cat([before, x], 2)
            torch.nn.functional.scaled_dot_product_attention(x, keys, keys)
            return keys

    model, x = Decoder(), torch.randn(1, 2, 5, 8)
    with regard.record(model) as seen:
        keys = None
        for i in range(5):
            keys = model(x[:, :, i : i + 1], keys)
    wanted = (x @ x.mT * 8**-0.5).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf).softmax(-1)[0]
    np.testing.assert_allclose(seen.weights(0), wanted.numpy(), atol=1e-6)


def test_sinks_are_recorded(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=1, sliding_window=5)).eval()
    ids = inputs("llama")["input_ids"][:1]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.normal_()
        plain = model.generate(ids, **GENERATED)
        with regard.record(model) as seen:
            written = model.generate(ids, **GENERATED)
    assert torch.equal(plain, written)
    assert_weights(seen, of_text(model, ids, written))
    assert seen.report() and "<iframe" in seen._repr_html_()
    seen.save(tmp_path / "seen.safetensors")
    assert len(regard.read_traces(tmp_path / "seen.safetensors")) == 1


@pytest.mark.parametrize("given, match", [
    ({"sinks": torch.zeros(1)}, "sink for each query"),
    ({"attention_mask": object()}, "no tensor"),
    ({"read_index": [torch.zeros(0)]}, "continuous batching"),
])
def test_calls_that_cannot_be_told_are_named(monkeypatch, given, match):
    attend = transformers.integrations.sdpa_attention.sdpa_attention_forward

    def own(*arguments, **named):
        return attend(*arguments[:4], None, **{name: x for name, x in named.items() if name != "attention_mask"})

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "own", own)
    model = small("llama").eval()
    model.config._attn_implementation_internal = "own"
    layer = model.model.layers[0].self_attn
    with regard.record(model) as seen:
        attend_own = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface("own", None)
        x = torch.randn(1, 4, 5, 8)
        attend_own(layer, x, x[:, :2], x[:, :2], **{"attention_mask": None, **given})
    with pytest.raises(ValueError, match=match):
        seen.weights(0)


def test_wrong_arguments_are_named():
    model = small("gpt2").eval()
    for named in ({"layers": 1}, {"rows": -1}, {"heads": 1}, {"heads": [0.5]}, {"layers": "12"}):
        with pytest.raises(TypeError, match=f"`{next(iter(named))}`"):
            regard.record(model, **named)
    for named in ({"layers": [-1]}, {"heads": [0, -1]}):
        with pytest.raises(ValueError, match=f"`{next(iter(named))}` is .*, expected numbers that count from 0"):
            regard.record(model, **named)
    with pytest.raises(ValueError, match="`heads`"):
        regard.record(model, heads=[])
    with pytest.raises(TypeError, match="`model` is a str"):
        regard.record("gpt2")
    with regard.record(model, layers=[99]) as seen:
        model(inputs("gpt2")["input_ids"])
    with pytest.raises(ValueError, match=r"layers=\[99\].*decoder.self 1"):
        seen.weights(99)
    with pytest.raises(IndexError, match="`heads`"), regard.record(model, heads=[7]):
        model(inputs("gpt2")["input_ids"])


def test_layers_are_chosen_and_missing_ones_named():
    model = small("gpt2").eval()
    with regard.record(model, layers=[1]) as seen:
        model(**inputs("gpt2"))
    assert [one.layer for one in seen.maps] == [1]
    with pytest.raises(IndexError, match="decoder.self 1"):
        seen.weights(0)
    with pytest.raises(IndexError, match="batch of 2"):
        seen.weights(1, batch=5)
    # The texts of a source are known without its layers.
    two, arguments = small("t5", num_decoder_layers=3).eval(), inputs("t5")
    with regard.record(two, layers=[2]) as last:
        two(**arguments)
    assert [one.kind for one in last.maps] == ["decoder.self", "decoder.cross"]
    assert last.trace().map(1)["keys"] == [str(int(i)) for i in arguments["input_ids"][0]]
    with regard.record(model) as seen:
        pass
    with pytest.raises(ValueError, match="nothing was recorded"):
        seen.trace()


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_heads_are_chosen(kind):
    model = small(kind).eval()
    arguments = inputs(kind)
    with torch.no_grad(), regard.record(model) as seen:
        model(**arguments)
    with torch.no_grad(), regard.record(model, heads=[3, 1]) as some:
        model(**arguments)
    for one, other in zip(seen.maps, some.maps):
        np.testing.assert_allclose(other.weights(), one.weights()[[3, 1]], atol=1e-6)
    # Where they are shown, they keep their numbers.
    trace, of_one = some.trace(), some.maps[0]
    assert len(trace) == 2 * len(some.maps)
    for at, head in enumerate((4, 2)):
        shown = trace.map(at)
        assert (shown["name"], shown["layer"], shown["heads"]) == (f"{of_one.kind}, head {head}", 0, 1)
        np.testing.assert_array_equal(shown["weights"][0], of_one.weights()[at])
    with pytest.raises(IndexError), regard.record(model, heads=[7]):
        model(**arguments)


def test_an_error_in_the_model_ends_the_recording():
    model = small("gpt2").eval()
    with pytest.raises(ZeroDivisionError), regard.record(model):
        raise ZeroDivisionError
    assert model.config._attn_implementation == "sdpa"
    assert not model._forward_pre_hooks


def test_pages_files_and_words(tmp_path):
    model = small("bart").eval()
    arguments = inputs("bart")
    with regard.record(model) as seen:
        model(**arguments)
    assert "encoder.self" in repr(seen)
    assert "<iframe" in seen._repr_html_()
    assert "heads" in seen.report()
    seen.save(tmp_path / "seen.safetensors")
    (back,) = regard.read_traces(tmp_path / "seen.safetensors")
    assert len(back) == len(seen.maps)
    cross = next(i for i in range(len(back)) if back.map(i)["name"] == "decoder.cross")
    assert back.map(cross)["keys"] == [str(int(i)) for i in arguments["input_ids"][0]]
    assert back.map(cross)["queries"] == [str(int(i)) for i in arguments["decoder_input_ids"][0]]


class Towers(torch.nn.Module):
    """Reads a text and looks at an image."""

    def __init__(self):
        super().__init__()
        self.text, self.image = Twice(1), Twice(1)

    def forward(self, ids, patches):
        self.text(torch.randn(len(ids), 1, ids.shape[1], 4))
        self.image(torch.randn(len(ids), 1, patches, 4))


def test_what_looks_at_no_tokens_has_none():
    model, ids = Towers(), torch.arange(40, 60)[None]
    places = [str(at) for at in range(20)]
    for calls in ([(20, 17)], [(4, 7), (6, 3), (1, 3)], [(1, 3)] * 5):
        with regard.record(model) as seen:
            for length, patches in calls:
                model(ids[:, -length:], patches)
        trace, (length, patches) = seen.trace(), calls[-1]
        assert trace.map(0)["keys"] == trace.map(0)["queries"] == [str(int(i)) for i in ids[0, -length:]]
        assert trace.map(1)["keys"] == trace.map(1)["queries"] == places[:patches]
    with regard.record(model) as seen:
        model(ids, 17)
        model.text(torch.randn(1, 1, 20, 4))
    assert seen.trace().map(0)["keys"] == places  # Called by itself: nobody knows of what.


def test_texts_of_several_calls_are_those_of_the_last():
    model = small("llama").eval()
    ids = inputs("llama")["input_ids"][:1]
    for options in ({}, {"use_cache": False}):
        with regard.record(model) as seen:
            model.generate(ids[:, :5], **GENERATED, **options)
            written = model.generate(ids, **GENERATED, **options)
        shown = seen.trace().map(1)
        assert shown["keys"] == shown["queries"] == [str(int(i)) for i in written[0, :-1]]


def test_a_notebook_shows_the_page(monkeypatch):
    """With IPython, of which a stand-in has what is used, and without it."""
    with regard.record(Twice(1)) as seen:
        seen.model(torch.randn(1, 1, 3, 4))
    display = ModuleType("IPython.display")
    display.HTML = lambda page: ("shown", page)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    shown, page = seen.show(height=300)
    assert shown == "shown" and page.startswith("<iframe") and "height:300px" in page
    for name in ("IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install ipython"):
        seen.show()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_chosen(kind):
    torch.manual_seed(0)
    model = small(kind).eval()
    arguments = inputs(kind)
    with torch.no_grad(), regard.record(model) as seen:
        model(**arguments)
    with torch.no_grad(), regard.record(model, rows=[4, 1, -1, 99]) as some:
        model(**arguments)
    assert len(some.maps) == len(seen.maps)
    for one, all_rows in zip(some.maps, seen.maps):
        rows = [1, 4, all_rows.shape[2] - 1]
        assert one.positions == rows
        for batch in range(2):
            np.testing.assert_allclose(one.weights(batch=batch), all_rows.weights(batch=batch)[:, rows], atol=1e-6)
            np.testing.assert_allclose(one.entropy(batch=batch), all_rows.entropy(batch=batch)[:, rows], atol=1e-5)
    if kind != "vit":
        assert [len(some.trace().map(0)[side]) for side in ("queries", "keys")] == list(some.maps[0].shape[2:])
    with pytest.raises(ValueError, match="all rows"):
        some.pooled(0, 2, 2)


def test_rows_of_generated_texts_are_chosen():
    model = small("llama").eval()
    ids = inputs("llama")["input_ids"][:1]
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with regard.record(model) as seen:
        model.generate(ids, **options)
    with regard.record(model, rows=[-1]) as last:
        model.generate(ids, **options)
    assert last.maps[0].positions == [8, 9, 10, 11, 12, 13]
    for one, every in zip(last.maps, seen.maps):
        np.testing.assert_allclose(one.weights(), every.weights()[:, 8:], atol=1e-6)
    with regard.record(model, rows=[200]) as nothing:
        model(ids)
    with pytest.raises(ValueError, match=r"rows=\[200\]"):
        nothing.weights(0)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "gemma2", "bert"])
def test_long_traces_keep_queries_and_keys(kind, tmp_path):
    from safetensors.numpy import load_file

    torch.manual_seed(0)
    model = small(kind).eval()
    ids = inputs(kind)["input_ids"]
    with torch.no_grad(), regard.record(model) as seen:
        model(ids)
    seen.save(tmp_path / "long.safetensors", batch=1, long=True)
    kept = load_file(tmp_path / "long.safetensors")
    for number, one in enumerate(seen.maps):
        query, key = kept[f"map.{number}.query"].astype(np.float32), kept[f"map.{number}.key"].astype(np.float32)
        assert query.shape == (4, 9, one._pieces[0].query.shape[3])
        assert key.shape[0] == one._keys[0].shape[1]
        # Of rounded queries and keys, under the options that the file names.
        _, _, options = one._long(1)
        window = None if options.pop("left") is None else (one._long(1)[2]["left"], None)
        found = regard.observe(query[None], key[None], rows=True, window=window, **options).weights[0]
        np.testing.assert_allclose(found, one.weights(batch=1), atol=3e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_of_half_precision_are_kept_long(dtype, tmp_path):
    torch.manual_seed(0)
    model = small("llama", attn_implementation="eager").to(dtype).eval()
    arguments = inputs("llama")
    with torch.no_grad(), regard.record(model) as seen:
        model(**arguments)
    seen.save(tmp_path / "long.safetensors", long=True)
    assert seen.maps[0]._long(0)[2]["causal"]
    # What a mask hides has no weight, and no query of the padding has any.
    weights = seen.weights(0, batch=1)
    assert not weights[:, :, :3].any() and not weights[:, :3].any()


def test_generated_texts_are_kept_long(tmp_path):
    model = small("llama").eval()
    with regard.record(model) as seen:
        model.generate(inputs("llama")["input_ids"][:1], max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0)
    seen.save(tmp_path / "long.safetensors", long=True)
    assert (tmp_path / "long.safetensors").stat().st_size > 0


def test_what_a_long_trace_cannot_keep_is_named(tmp_path):
    model, arguments = small("t5").eval(), inputs("t5")
    with torch.no_grad(), regard.record(model) as seen:
        model(**arguments)
    with pytest.raises(ValueError, match="one text"):
        seen.save(tmp_path / "x", long=True)
    model, arguments = small("bert").eval(), inputs("bert")
    with torch.no_grad(), regard.record(model) as seen:
        model(**arguments)
    with pytest.raises(ValueError, match="mask"):
        seen.save(tmp_path / "x", batch=1, long=True)
    with torch.no_grad(), regard.record(model, rows=[0]) as seen:
        model(**arguments)
    with pytest.raises(ValueError, match="rows"):
        seen.save(tmp_path / "x", long=True)
    assert not list(tmp_path.iterdir())


def test_long_texts_are_pooled():
    model = small("llama").eval()
    with regard.record(model) as seen, torch.no_grad():
        model(torch.randint(3, 64, (1, 700)))
    cells = seen.pooled(0, 10, 20)
    weights = seen.weights(0)
    assert cells.shape == (4, 10, 20)
    np.testing.assert_allclose(cells[:, 0, 0], weights[:, :70, :35].max((1, 2)), atol=1e-6)


class Twice(torch.nn.Module):
    """Attends some times in one run."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def forward(self, x, mask=None):
        for _ in range(self.times):
            x = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return x


@pytest.mark.parametrize("threads", [False, True])
def test_recorders_that_end_in_any_order_leave_pytorch_as_it_was(threads):
    changed = [
        (torch.nn.functional, "scaled_dot_product_attention"), (torch.nn.MultiheadAttention, "forward"), (torch, "_native_multi_head_attention"),
        (torch, "_transformer_encoder_layer_fwd"), (torch.nn.modules.module, "_global_forward_hooks"), (torch.nn.modules.module, "_global_forward_pre_hooks"),
    ]
    plain = [copy.copy(getattr(*one)) for one in changed]
    one, other = Twice(1), Twice(1)
    first, second = regard.record(one), regard.record(other)

    def run(step):
        if threads:
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
        else:
            step()

    run(first.__enter__)
    run(second.__enter__)
    run(first.__exit__)
    other(torch.randn(1, 1, 3, 4))
    run(second.__exit__)
    assert [getattr(*one) for one in changed] == plain
    assert (len(first.maps), len(second.maps)) == (0, 1)


class Meets(torch.nn.Module):
    """Attends while others do."""

    def __init__(self, before, after):
        super().__init__()
        self.before, self.after = before, after

    def forward(self, x):
        self.before.wait(60)
        x = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        self.after.wait(60)
        return x


def side_by_side(*steps):
    """Runs each step on a thread of its own; an error of any is raised."""
    with ThreadPoolExecutor(len(steps)) as pool:
        return [one.result(60) for one in [pool.submit(step) for step in steps]]


def test_what_other_threads_attend_to_is_not_recorded():
    before, after = threading.Barrier(2), threading.Barrier(2)
    model = Meets(before, after)

    def own():
        with regard.record(model) as seen:
            model(torch.randn(1, 2, 5, 4))
        return seen

    def foreign():
        x = torch.randn(1, 2, 7, 4)
        before.wait(60)
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        after.wait(60)

    seen, _ = side_by_side(own, foreign)
    assert [one.shape for one in seen.maps] == [(1, 2, 5, 5)]


def test_recorders_of_several_threads_keep_their_own():
    before, after = threading.Barrier(2), threading.Barrier(2)

    def recorded(length):
        model = Meets(before, after)
        with regard.record(model) as seen:
            for _ in range(3):
                model(torch.randn(1, 2, length, 4))
            after.wait(60)  # Neither recorder ends while the other model runs.
        return seen

    found = side_by_side(lambda: recorded(5), lambda: recorded(6))
    assert [[one.shape for one in seen.maps] for seen in found] == [[(1, 2, 5, 5)], [(1, 2, 6, 6)]]


@pytest.mark.parametrize("kind", ["gpt2", "t5", "vit", "plain"])
def test_a_model_is_recorded_on_the_thread_that_runs_it(kind):
    torch.manual_seed(0)
    model = (Plain() if kind == "plain" else small(kind)).eval()
    arguments = {"x": torch.randn(2, 5, 32)} if kind == "plain" else inputs(kind)

    @torch.no_grad()
    def run():
        return model(**arguments)

    with regard.record(model) as here:
        run()
    with regard.record(model) as there:
        side_by_side(run)
    assert [(one.name, one.shape) for one in there.maps] == [(one.name, one.shape) for one in here.maps]
    for one, other in zip(here.maps, there.maps):
        np.testing.assert_array_equal(one.weights(), other.weights())


def test_models_of_several_threads_are_recorded_at_once():
    models = [small("gpt2").eval(), small("llama").eval()]
    begin = threading.Barrier(2)

    def generated(model, ids):
        begin.wait(60)
        with regard.record(model) as seen:
            written = model.generate(ids, **GENERATED)
        return seen, written

    ids = [inputs("gpt2")["input_ids"][:1, :length] for length in (5, 8)]
    for model, one, (seen, written) in zip(models, ids, side_by_side(*(partial(generated, *both) for both in zip(models, ids)))):
        assert_weights(seen, of_text(twin(model), one, written))


def test_a_recorder_may_begin_and_end_while_the_model_runs_elsewhere():
    before, after = threading.Barrier(2), threading.Barrier(2)
    model = Meets(before, after)

    def run():
        with regard.record(model) as seen:
            model(torch.randn(1, 2, 5, 4))
        return seen

    def look():
        before.wait(60)
        with regard.record(model) as begun:  # In the middle of the first run, and to that of the second.
            after.wait(60)
            before.wait(60)
        after.wait(60)
        return begun

    def twice():
        return run(), run()

    (first, second), begun = side_by_side(twice, look)
    assert [len(seen.maps) for seen in (first, second)] == [1, 1]
    assert len(begun.maps) <= 1


def test_a_recorder_is_copied():
    with regard.record(Twice(1)) as seen:
        seen.model(torch.randn(1, 1, 3, 4))
    for other in (copy.deepcopy(seen), pickle.loads(pickle.dumps(seen))):
        np.testing.assert_array_equal(other.weights(0), seen.weights(0))


@pytest.mark.parametrize("own", [False, True])
def test_transformers_is_left_as_it_was(own, monkeypatch):
    """Older versions of transformers have the lookup in the class itself, later ones inherit it."""
    interface = transformers.AttentionInterface
    if own:
        found = interface.__getitem__
        monkeypatch.setattr(interface, "__getitem__", lambda self, name: found(self, name), raising=False)
    before = dict(vars(interface))
    with regard.record(small("gpt2")):
        assert dict(vars(interface)) != before
    assert dict(vars(interface)) == before
