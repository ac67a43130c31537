"""What models of transformers and PyTorch attend to, against the weights that they give themselves (`attn_implementation="eager"`)."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy as np  # noqa: E402

import regard  # noqa: E402


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


def test_layers_are_chosen_and_missing_ones_named():
    model = small("gpt2").eval()
    with regard.record(model, layers=[1]) as seen:
        model(**inputs("gpt2"))
    assert [one.layer for one in seen.maps] == [1]
    with pytest.raises(IndexError, match="decoder.self 1"):
        seen.weights(0)
    with pytest.raises(IndexError, match="batch of 2"):
        seen.weights(1, batch=5)
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


class Plain(torch.nn.Module):
    """A model that transformers does not know."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
        self.last = torch.nn.MultiheadAttention(32, 4)

    def forward(self, x, padding=None):
        x = self.layer(x, src_key_padding_mask=padding)
        y = x.transpose(0, 1)
        return self.last(y, y, y, average_attn_weights=False, key_padding_mask=padding)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_a_module_that_adds_keys_of_its_own_is_named(option):
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True, **{option: True}).eval()
    x = torch.randn(2, 5, 32)
    with regard.record(layer) as seen, torch.no_grad():
        layer(x, x, x)
    (one,) = seen.maps
    with pytest.raises(ValueError, match="add_bias_kv"):
        one.weights()


@pytest.mark.parametrize("padded", [False, True])
def test_plain_modules_are_recorded(padded):
    torch.manual_seed(0)
    model = Plain().eval()
    x = torch.randn(2, 5, 32)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if padded else None
    with torch.no_grad():
        output, weights = model(x, padding)
        with regard.record(model) as seen:
            again, _ = model(x, padding)
    torch.testing.assert_close(output, again)
    by_name = {one.name: one for one in seen.maps}
    assert set(by_name) == {"layer.self_attn", "last"}
    for batch in range(2):
        np.testing.assert_allclose(by_name["last"].weights(batch=batch), weights[batch].numpy(), atol=1e-6)
        rows = by_name["layer.self_attn"].weights(batch=batch)
        np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-5)
        if padded and batch == 1:
            assert (rows[..., 3:] == 0).all()
