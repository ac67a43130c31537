"""What recorders are asked for: a text whose first part a cache holds, some layers, and wrong arguments by name."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy as np  # noqa: E402

import regard  # noqa: E402
from regard import _recorder  # noqa: E402
from test_record import GENERATED, inputs, small  # noqa: E402


def recorded(kind="llama", **chosen):
    model = small(kind).eval()
    with torch.no_grad(), regard.record(model, **chosen) as seen:
        model(**inputs(kind))
    return seen


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_positions_count_what_a_cache_held_before(kind):
    torch.manual_seed(0)
    model = small(kind).eval()
    if kind == "mistral":
        model.config.sliding_window = 64  # More than there are keys.
    ids = torch.randint(3, 64, (1, 12))
    with torch.no_grad():
        with regard.record(model) as whole:
            model(ids)

        def begun(**chosen):
            cache = model(ids[:, :5], use_cache=True).past_key_values
            with regard.record(model, **chosen) as seen:
                model(ids[:, 5:9], past_key_values=cache)
                model(ids[:, 9:10], past_key_values=cache)
                model(ids[:, 10:], past_key_values=cache)
            return seen

        for chosen, positions in (({}, range(5, 12)), ({"rows": [6, 11]}, [6, 11]), ({"rows": [-1]}, [8, 9, 11])):
            seen = begun(**chosen)
            for one, all_rows in zip(seen.maps, whole.maps, strict=True):
                assert one.positions == list(positions)
                np.testing.assert_allclose(one.weights(), all_rows.weights()[:, list(positions)], atol=2e-6)
            shown = seen.trace().map(0)
            known = [str(int(i)) for i in ids[0, 5:]]
            assert shown["keys"] == [""] * 5 + known
            assert shown["queries"] == [known[at - 5] for at in positions]
        with pytest.raises(ValueError, match="rows=\\[4\\]"):
            begun(rows=[4]).weights(0)
        with pytest.raises(ValueError, match="7 queries and 12 keys"):
            begun().save("never", long=True)


def test_a_later_turn_of_a_chat_counts_on():
    torch.manual_seed(0)
    model = small("llama").eval()
    ids = inputs("llama")["input_ids"][:1]
    first = model.generate(ids[:, :5], return_dict_in_generate=True, **GENERATED)
    turn = torch.cat([first.sequences, ids[:, 5:]], 1)
    with regard.record(model) as seen:
        written = model.generate(turn, past_key_values=first.past_key_values, **GENERATED)
    with regard.record(model) as whole, torch.no_grad():
        model(written[:, :-1])
    for one, every in zip(seen.maps, whole.maps, strict=True):
        # The last token that was written is not in the cache.
        assert one.positions == list(range(12, 24))
        np.testing.assert_allclose(one.weights(), every.weights()[:, 12:], atol=5e-6)


def test_a_window_that_may_have_lost_keys_is_named():
    torch.manual_seed(0)
    model = small("mistral").eval()
    ids = torch.randint(3, 64, (1, 9))
    with torch.no_grad():
        cache = model(ids[:, :7], use_cache=True).past_key_values
        with regard.record(model, rows=[7]) as seen:
            model(ids[:, 7:8], past_key_values=cache)
            model(ids[:, 8:], past_key_values=cache)
        with pytest.raises(ValueError, match="record the text from its beginning"):
            seen.weights(0)
        with seen:
            model(ids)
    assert seen.maps[0].positions == [7]  # A text that follows is recorded again.


def test_layers_are_chosen_where_they_are_shown(tmp_path, monkeypatch):
    seen = recorded()
    monkeypatch.setattr(_recorder, "MOST_WEIGHTS", 2 * 4 * 9 * 9 - 1)
    for call in (seen.trace, seen.report, seen.html, seen.serve, lambda: seen.save(tmp_path / "x", long=False)):
        with pytest.raises(ValueError, match=r"pass layers=\[...\] here"):
            call()
    assert len(seen.trace(layers=[1])) == 1
    assert "4 heads" in seen.report(layers=[1])
    assert "<html" in seen.html(layers=iter([1]))
    seen.save(tmp_path / "x", layers=iter([1]))
    (back,) = regard.read_traces(tmp_path / "x")
    assert [len(back), back.map(0)["layer"]] == [1, 1]
    with seen.serve(layers=[0], open_browser=False) as viewer:
        assert viewer.url
    with pytest.raises(ValueError, match=r"`layers` is \[9\].*there are decoder.self 0, decoder.self 1"):
        seen.report(layers=[9])


def test_a_notebook_shows_a_note_where_there_is_no_page(monkeypatch):
    seen = recorded()
    assert seen._repr_html_().startswith("<iframe")
    monkeypatch.setattr(_recorder, "MOST_WEIGHTS", 1)
    note = seen._repr_html_()
    assert note.startswith("<p>&lt;regard.Recorder of LlamaForCausalLM") and "at most 1 fit a trace" in note
    monkeypatch.undo()
    model = small("bart").eval()
    with regard.record(model) as seen:
        model.generate(inputs("bart")["input_ids"][:1], num_beams=4, max_new_tokens=12, do_sample=False)
    assert "beam search" in seen._repr_html_()
    assert seen.weights(0, kind="encoder.self").shape == (4, 9, 9)


WRONG = [
    (lambda seen: seen.weights("a"), TypeError, "layer"),
    (lambda seen: seen.weights(0, head=4), IndexError, "head"),
    (lambda seen: seen.weights(0, head=-1), IndexError, "head"),
    (lambda seen: seen.weights(0, head="a"), TypeError, "head"),
    (lambda seen: seen.weights(0, kind=3), TypeError, "kind"),
    (lambda seen: seen.weights(0, batch=2), IndexError, "batch"),
    (lambda seen: seen.entropy(0, batch=-1), IndexError, "batch"),
    (lambda seen: seen.entropy(0, batch=None), TypeError, "batch"),
    (lambda seen: seen.trace(batch=1.5), TypeError, "batch"),
    (lambda seen: seen.trace(layers=1), TypeError, "layers"),
    (lambda seen: seen.save("never", batch="a"), TypeError, "batch"),
    (lambda seen: seen.save("never", batch="a", long=True), TypeError, "batch"),
    (lambda seen: seen.save(3), TypeError, "path"),
    (lambda seen: seen.pooled(0, "a", 1), TypeError, "rows"),
    (lambda seen: seen.pooled(0, 1, 10), ValueError, "columns"),
    (lambda seen: seen.pooled(0, 1, 1, pool=np.ones(3)), TypeError, "pool"),
    (lambda seen: seen.top(0, -1), ValueError, "k"),
    (lambda seen: seen.top(0, 1.5), TypeError, "k"),
    (lambda seen: regard.record(seen.model, "gpt2"), TypeError, "tokenizer"),
    (lambda seen: regard.record(torch.nn.Linear), TypeError, "model"),
]


def test_wrong_arguments_of_a_recorder_are_named():
    seen = recorded()
    for at, (call, error, name) in enumerate(WRONG):
        with pytest.raises(error, match=f"^`{name}` is "):
            call(seen)
            pytest.fail(f"call {at} was answered")


def test_a_model_that_is_its_own_attention_is_called_the_model():
    model = torch.nn.MultiheadAttention(8, 2, add_zero_attn=True).eval()
    x = torch.randn(3, 1, 8)
    with torch.no_grad(), regard.record(model) as seen:
        model(x, x, x)
    with pytest.raises(ValueError, match="^the attention of the model cannot be computed"):
        seen.weights(0)
