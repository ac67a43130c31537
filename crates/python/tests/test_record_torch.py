"""What PyTorch's own modules attend to, in steps and on their fast path of inference, against the weights that they give themselves."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import regard  # noqa: E402


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


def encoder(times=2, **more):
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, **more)
    return torch.nn.TransformerEncoder(layer, times, enable_nested_tensor=not more.get("norm_first", False)).eval()


PADDING = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])

LATER = torch.ones(6, 6, dtype=torch.bool).triu(1)

FAST = {
    "alone": ({}, {}), "padded": ({}, {"src_key_padding_mask": PADDING}), "causal": ({}, {"mask": LATER}),
    "both": ({"norm_first": True}, {"mask": LATER, "src_key_padding_mask": PADDING}),
}


@pytest.mark.parametrize(("more", "given"), FAST.values(), ids=FAST)
def test_the_fast_path_of_pytorch_is_recorded_and_stays(more, given):
    torch.manual_seed(0)
    model, x = encoder(**more), torch.randn(2, 6, 32)
    with torch.no_grad():
        plain = model(x, **given)
        with regard.record(model) as seen:
            assert torch.equal(plain, model(x, **given))
        with regard.record(model.layers[1].self_attn) as part:
            assert torch.equal(plain, model(x, **given))
    np.testing.assert_array_equal(part.weights(0), seen.weights(1))
    with regard.record(model) as steps:
        model(x, **given)
    assert [one.kind for one in seen.maps] == [one.kind for one in steps.maps]
    # What the modules compute in steps, where the fast path is off.
    expected = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.MultiheadAttention):
            def kept(layer, arguments, named, name=name):
                expected[name] = layer.forward(*arguments, **{**named, "need_weights": True, "average_attn_weights": False})[1].detach()

            layer.register_forward_pre_hook(kept, with_kwargs=True)
    with torch.enable_grad():
        model(x, **given)
    assert [one.name for one in seen.maps] == list(expected) == ["layers.0.self_attn", "layers.1.self_attn"]
    for one in seen.maps:
        for batch, real in ((0, 6), (1, 4 if "src_key_padding_mask" in given else 6)):
            np.testing.assert_allclose(one.weights(batch=batch)[:, :real], expected[one.name][batch, :, :real].numpy(), atol=2e-6)
    if given.keys() == {"src_key_padding_mask"}:
        # Padding is left out of the computation, so that it attends to nothing.
        assert (plain[1, 4:] == 0).all() and (seen.weights(1, batch=1)[:, 4:] == 0).all()


def test_parts_on_the_fast_path_are_recorded_and_stay():
    torch.manual_seed(0)
    layer, x = encoder().layers[0], torch.randn(2, 6, 32)
    attention = layer.self_attn
    runs = [(layer, lambda: layer(x)), *((attention, partial(attention, x, x, x, need_weights=wanted)) for wanted in (True, False))]
    for model, run in runs:
        with torch.no_grad():
            plain = run()
            with regard.record(model) as seen:
                found = run()
        torch.testing.assert_close(found, plain, rtol=0, atol=0)
        (one,) = seen.maps
        np.testing.assert_allclose(one.weights().mean(0), attention(x, x, x)[1][0].detach().numpy(), atol=1e-6)
    # In any layout: texts of 6 and of 3 tokens.
    texts = torch.nested.nested_tensor([x[0], x[1, :3]])
    with torch.no_grad():
        plain = layer(texts).to_padded_tensor(0.0)
        with regard.record(layer) as seen:
            assert torch.equal(plain, layer(texts).to_padded_tensor(0.0))
    assert not seen.weights(0, batch=1)[:, 3:].any()


def test_recording_one_model_leaves_the_fast_path_of_others():
    torch.manual_seed(0)
    other, x = encoder(), torch.randn(2, 6, 32)
    with torch.no_grad():
        plain = other(x, src_key_padding_mask=PADDING)
        with regard.record(Projected()) as seen:
            assert torch.backends.mha.get_fastpath_enabled()
            assert torch.equal(plain, other(x, src_key_padding_mask=PADDING))
    assert not seen.maps


class Projected(torch.nn.Module):
    """Attends to projections."""

    def __init__(self):
        super().__init__()
        self.query, self.key = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

    def forward(self, x):
        query, key, value = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in (self.query(x), self.key(x), x))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def test_compiled_models_compute_the_same_when_they_are_recorded():
    """torch.compile reads the hooks of a recorder: it must not take a layer for another."""
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(Projected(), Projected()), torch.randn(2, 6, 32)
    with torch.no_grad():
        plain, compiled = model(x), torch.compile(model, backend="eager")
        with regard.record(model):
            torch.testing.assert_close(compiled(x), plain)


def test_texts_of_two_lengths_are_recorded_where_padding_is_left_out():
    torch.manual_seed(0)
    model, x = encoder(1), torch.randn(2, 6, 32)
    padding = torch.tensor([[False] * 3 + [True] * 3, [False] * 5 + [True]])
    with torch.no_grad(), regard.record(model) as seen:
        model(x, src_key_padding_mask=padding)
    assert seen.maps[0].shape == (2, 4, 5, 5)
    for batch, length in enumerate((3, 5)):
        weights = seen.weights(0, batch=batch)
        np.testing.assert_allclose(weights[:, :length, :length].sum(-1), 1, atol=1e-5)
        assert not weights[:, length:].any() and not weights[:, :, length:].any()


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_text_without_a_batch_is_recorded(need_weights):
    torch.manual_seed(0)
    layer, x = torch.nn.MultiheadAttention(32, 4).eval(), torch.randn(5, 32)
    padding = torch.tensor([False] * 4 + [True])
    with torch.no_grad():
        _, weights = layer(x, x, x, average_attn_weights=False, key_padding_mask=padding)
        with regard.record(layer) as seen:
            layer(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    np.testing.assert_allclose(seen.weights(0), weights.numpy(), atol=1e-6)


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
    assert torch.equal(output, again)
    by_name = {one.name: one for one in seen.maps}
    assert set(by_name) == {"layer.self_attn", "last"}
    for batch in range(2):
        np.testing.assert_allclose(by_name["last"].weights(batch=batch), weights[batch].numpy(), atol=1e-6)
        rows = by_name["layer.self_attn"].weights(batch=batch)
        np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-5)
        if padded and batch == 1:
            assert (rows[..., 3:] == 0).all()


class Meets(torch.nn.Module):
    """Queries of one side meet keys of another."""

    def forward(self, query, key):
        return torch.nn.functional.scaled_dot_product_attention(query, key, key)


@pytest.mark.parametrize(("queries", "keys"), [((2, 4), (1, 4)), ((1, 4), (2, 4)), ((2, 4), (2, 1)), ((1, 1), (2, 4))])
def test_entries_that_pytorch_repeats_are_repeated(queries, keys):
    torch.manual_seed(0)
    query, key = torch.randn(*queries, 5, 8), torch.randn(*keys, 7, 8)
    with regard.record(Meets()) as seen:
        seen.model(query, key)
    truth = (query @ key.transpose(-1, -2) / 8**0.5).softmax(-1).numpy()
    assert seen.maps[0].shape == (2, 4, 5, 7)
    for batch in range(2):
        np.testing.assert_allclose(seen.weights(0, batch=batch), truth[batch], atol=2e-6)
