"""What models of transformers and modules of one's own attend to, against the weights that they give themselves (`attn_implementation="eager"`)."""

import copy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy as np  # noqa: E402

import regard  # noqa: E402
from recorded import GENERATED, KINDS, Twice, assert_weights, given, inputs, of_text, small, twin  # noqa: E402


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


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "llama4", "bart", "t5"])
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
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "llama4", "t5"])
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
@pytest.mark.parametrize("kind", ["llama", "mistral", "llama4"])
def test_a_static_cache_is_followed_step_by_step(kind, prompt):
    torch.manual_seed(0)
    model = small(kind).eval()
    ids = inputs(kind)["input_ids"][:1]
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    ends = range(prompt, 10)
    with torch.no_grad(), regard.record(model) as seen:
        for start, end in zip([0, *ends], ends):
            model(ids[:, start:end], past_key_values=cache)
        assert_weights(seen, twin(model)(ids, output_attentions=True))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("prompt", [5, 9, 12])
def test_chunks_are_followed_step_by_step(prompt, static):
    """A prompt that fills a chunk, ends in the second one, and in the third; then tokens one by one and three at once, of two texts."""
    torch.manual_seed(0)
    model = small("llama4").eval()
    ids = torch.randint(3, 64, (2, 17))
    ends = [prompt, prompt + 1, prompt + 2, prompt + 5]
    # Where PyTorch counts no writes.
    with torch.inference_mode():
        for chosen in ({}, {"heads": [2, 0]}, {"rows": [3, prompt, -1]}):
            cache = transformers.StaticCache(config=model.config, max_cache_len=20) if static else transformers.DynamicCache(config=model.config)
            with regard.record(model, **chosen) as seen:
                for start, end in zip([0, *ends], ends):
                    model(ids[:, start:end], past_key_values=cache)
            truth = twin(model)(ids[:, : ends[-1]], output_attentions=True).attentions
            assert [one.layer for one in seen.maps] == [0, 1]
            for one in seen.maps:
                wanted = truth[one.layer][:, chosen.get("heads", slice(None))][:, :, one.positions].numpy()
                for batch in range(2):
                    np.testing.assert_allclose(one.weights(batch=batch), wanted[batch], atol=5e-6, err_msg=f"{one}")


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
