"""Recorders beside each other: on several threads, begun and ended in any order, and copied."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy as np  # noqa: E402

import regard  # noqa: E402
from recorded import GENERATED, Twice, assert_weights, inputs, of_text, small, twin  # noqa: E402
from test_record_torch import Plain  # noqa: E402


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
