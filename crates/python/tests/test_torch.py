"""Attention as an operation of PyTorch: equal to PyTorch's own, with its gradients."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import regard  # noqa: E402

functional = torch.nn.functional


def inputs(*, dtype=torch.float32, key_heads=2):
    torch.manual_seed(0)
    shapes = (2, 4, 7, 16), (2, key_heads, 9, 16), (2, key_heads, 9, 8)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


CASES = {
    "plain": ({}, {}),
    "causal": ({"causal": True, "alignment": "upper-left"}, {"is_causal": True}),
    "scale": ({"scale": 0.2}, {"scale": 0.2}),
    "mask": ({"mask": torch.arange(9) < 6}, {"attn_mask": (torch.arange(9) < 6).expand(7, 9)}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_pytorchs_with_its_gradients(case):
    ours, theirs = CASES[case]
    tensors = inputs()
    expected = functional.scaled_dot_product_attention(*tensors, enable_gqa=True, **theirs)
    upstream = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, tensors, upstream)
    output = regard.attention(*tensors, **ours)
    torch.testing.assert_close(output, expected)
    for found, gradient in zip(torch.autograd.grad(output, tensors, upstream), gradients):
        torch.testing.assert_close(found, gradient)


def test_bias_and_sink_have_gradients():
    query, key, value = inputs()
    bias, sink = torch.randn(1, 4, 7, 9, requires_grad=True), torch.randn(4, requires_grad=True)

    def plain():
        scores = query @ key.repeat_interleave(2, 1).mT / 4 + bias
        with_sink = torch.cat([scores, sink[None, :, None, None].expand(2, 4, 7, 1)], -1)
        return with_sink.softmax(-1)[..., :-1] @ value.repeat_interleave(2, 1)

    of = query, key, value, bias, sink
    expected = torch.autograd.grad(plain().square().sum(), of)
    found = torch.autograd.grad(regard.attention(query, key, value, bias=bias, sink=sink).square().sum(), of)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    tensors = inputs(dtype=dtype)
    output = regard.attention(*tensors, causal=True)
    assert output.dtype == dtype
    wide = [x.detach().float() for x in tensors]
    torch.testing.assert_close(output.float(), regard.attention(*wide, causal=True), rtol=2e-2, atol=2e-2)
    output.float().sum().backward()
    assert all(x.grad.dtype == dtype for x in tensors)


def test_additive_attention_has_gradients():
    torch.manual_seed(1)
    query, key, v, value, bias = (torch.randn(s, requires_grad=True) for s in [(2, 3, 5), (2, 4, 5), (5,), (2, 4, 6), (2, 3, 4)])
    weights = (torch.tanh(query[:, :, None] + key[:, None]) @ v + bias).softmax(-1)
    of = query, key, v, value, bias
    expected = torch.autograd.grad((weights @ value).square().sum() + weights.square().sum(), of)
    context, found = regard.additive_attention(*of[:4], bias=bias)
    torch.testing.assert_close(found, weights)
    gradients = torch.autograd.grad(context.square().sum() + found.square().sum(), of)
    for one, other in zip(gradients, expected):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_sinks_of_half_precision_are_numbers_with_gradients():
    tensors = inputs()
    sink = torch.tensor([1.0, 2.0, -1.0, 0.5])
    found = []
    for one in (sink, sink.bfloat16()):
        one.requires_grad_()
        output = regard.attention(*tensors, sink=one)
        output.square().sum().backward()
        assert one.grad.dtype == one.dtype
        found.append((output.detach(), one.grad.float()))
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-2, atol=1e-3)
    with pytest.raises(TypeError, match="`lengths` is of bfloat16"):
        regard.attention(*tensors, lengths=torch.tensor([3, 3]).bfloat16())


@pytest.mark.parametrize("name", ["bias", "mask"])
def test_what_was_changed_before_the_pass_backward_is_refused(name):
    shape = (1, 4, 7, 9)
    torch.manual_seed(2)
    given = torch.randn(shape) if name == "bias" else torch.rand(shape) > 0.5

    def gradients(given, *, change=None):
        tensors = inputs()
        output = regard.attention(*tensors, **{name: given})
        if change is not None:
            change()
        return torch.autograd.grad(output.square().sum(), tensors)

    expected = gradients(given)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed = given.clone()
        gradients(changed, change=changed.zero_)
    # Of arrays nobody knows, so they are copied; of lists, too.
    for one, other in zip(gradients(given.tolist()), expected):
        torch.testing.assert_close(one, other)
    array = given.numpy().copy()
    for one, other in zip(gradients(array, change=lambda: array.fill(0)), expected):
        torch.testing.assert_close(one, other)


def test_a_table_of_blocks_that_was_changed_gives_the_same_gradients():
    table = torch.tensor([[True, False, True], [True, True, False]])

    def gradients(change):
        tensors = inputs()
        output = regard.attention(*tensors, blocks=(4, 3, table))
        change()
        return torch.autograd.grad(output.square().sum(), tensors)

    for one, other in zip(gradients(lambda: None), gradients(table.zero_)):
        torch.testing.assert_close(one, other)


def test_a_bias_gets_a_gradient_where_one_is_asked_for():
    tensors = inputs()
    bias = torch.randn(1, 4, 7, 9)
    regard.attention(*tensors, bias=bias).sum().backward()
    assert bias.grad is None and tensors[0].grad is not None
    bias.requires_grad_()
    query, key, value = (x.detach() for x in tensors)
    regard.attention(query, key, value, bias=bias).square().sum().backward()
    scores = query @ key.repeat_interleave(2, 1).mT / 4 + bias
    expected = torch.autograd.grad((scores.softmax(-1) @ value.repeat_interleave(2, 1)).square().sum(), bias)[0]
    torch.testing.assert_close(bias.grad, expected, rtol=1e-4, atol=1e-4)


def test_arrays_beside_tensors_are_named_or_read():
    torch.manual_seed(3)
    arguments = [torch.randn(s, requires_grad=True) for s in [(2, 3, 5), (2, 4, 5), (5,), (2, 4, 6)]]
    for at, name in enumerate(("query", "key", "v", "value")):
        some = [x.detach().numpy() if i == at else x for i, x in enumerate(arguments)]
        with pytest.raises(TypeError, match=f"`{name}` is a ndarray, expected a tensor"):
            regard.additive_attention(*some)
    bias, mask = torch.randn(2, 3, 4), torch.rand(2, 4) > 0.3
    expected, _ = regard.additive_attention(*arguments, bias=bias, mask=mask)
    found, _ = regard.additive_attention(*arguments, bias=bias.numpy(), mask=mask.numpy())
    torch.testing.assert_close(found, expected)
    for one, other in zip(torch.autograd.grad(found.sum(), arguments), torch.autograd.grad(expected.sum(), arguments)):
        torch.testing.assert_close(one, other)
    expected, _ = regard.additive_attention(*arguments, mask=mask)
    mask.logical_not_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        expected.sum().backward()


def test_score_vectors_of_heads_have_gradients():
    torch.manual_seed(4)
    query, key, v, value = (torch.randn(s, requires_grad=True) for s in [(6, 3, 5), (6, 4, 5), (3, 5), (6, 4, 2)])
    of = query, key, v, value
    scores = (torch.tanh(query[:, :, None] + key[:, None]) * v.repeat(2, 1)[:, None, None]).sum(-1)
    expected = torch.autograd.grad((scores.softmax(-1) @ value).square().sum(), of)
    context, _ = regard.additive_attention(*of)
    for one, other in zip(torch.autograd.grad(context.square().sum(), of), expected):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_random_tensors_raise_or_answer():
    torch.manual_seed(5)
    draw = torch.Generator().manual_seed(6)

    def chance(of):
        return torch.rand((), generator=draw).item() < of

    answered = 0
    for _ in range(2000):
        tensors = []
        for _ in range(3):
            shape = [1, 2, 3, 4]
            if chance(0.1):
                shape[int(torch.randint(4, (), generator=draw))] = int(torch.randint(6, (), generator=draw))
            dtype = torch.float32 if chance(0.9) else [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64][int(torch.randint(5, (), generator=draw))]
            x = torch.zeros(shape, dtype=dtype, device="meta" if chance(0.05) else "cpu")
            if chance(0.1):
                x = x.transpose(2, 3)
            if chance(0.05):
                x = x.to_sparse() if x.device.type == "cpu" else x
            if chance(0.05) and x.layout is torch.strided and x.shape[2] > 0:
                x = x[:, :, :1].expand(-1, -1, 3, -1)
            tensors.append(x.requires_grad_() if chance(0.3) and x.is_floating_point() and x.layout is torch.strided else x)
        try:
            output = regard.attention(*tensors, causal=chance(0.5))
            if output.requires_grad:
                output.sum().backward()
            answered += 1
        except (TypeError, ValueError, NotImplementedError) as error:
            assert any(f"`{name}`" in str(error) or name in str(error) for name in ("query", "key", "value")), error
    assert answered > 100


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
def test_a_nested_tensor_is_refused_by_name(layout, name):
    x = torch.randn(2, 1, 3, 4)
    nested = torch.nested.nested_tensor([torch.randn(1, 3, 4), torch.randn(2, 3, 4)], layout=layout)
    arguments = {"query": x, "key": x, "value": x, name: nested}
    with pytest.raises(TypeError, match=f"`{name}` is a nested tensor"):
        regard.attention(**arguments)


def test_a_table_with_its_heads_behind_is_refused():
    x = torch.randn(1, 2, 3, 4)
    of_t5 = torch.nn.Embedding(5, 2).weight
    with pytest.raises(ValueError, match=r"`relative\[0\]` has the shape \[5, 2\], expected \[heads = 2, distances\]"):
        regard.attention(x, x, x, relative=(of_t5, 2))
    turned = regard.attention(x, x, x, relative=(of_t5.T, 2))
    torch.testing.assert_close(turned, regard.attention(x, x, x, relative=(of_t5.detach().T.contiguous(), 2)))


def test_a_tensor_of_another_device_is_refused():
    x = torch.zeros(1, 1, 2, 4, device="meta")
    with pytest.raises(ValueError, match="meta"):
        regard.attention(x, x, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.bool])
def test_maps_of_any_precision_are_drawn_on_axes(dtype):
    Figure = pytest.importorskip("matplotlib.figure").Figure
    weights = torch.tensor([[[0.25, 0.75], [1.0, 0.0]], [[0.75, 0.25], [0.0, 1.0]]]).to(dtype)
    mean = weights.float().mean(0).numpy()
    for given in (weights, weights.clone().requires_grad_() * 1) if dtype.is_floating_point else (weights,):
        ax = Figure().subplots()
        regard.plot(given, ax=ax)
        (image,) = ax.images
        np.testing.assert_array_equal(image.get_array(), mean)
    for wrong in (weights.to(torch.complex64), np.array([["a"]]), "weights", None):
        with pytest.raises(TypeError, match="^`weights` is "):
            regard.plot(wrong, ax=ax)
    with pytest.raises(ValueError, match="^`weights` is on meta"):
        regard.plot(weights.to("meta"), ax=ax)
