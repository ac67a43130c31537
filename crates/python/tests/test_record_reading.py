"""What recorders are asked for: a text whose first part a cache holds, some layers, heads and rows, pages and files, and wrong arguments by name."""

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy as np  # noqa: E402

import regard  # noqa: E402
from regard import _recorder  # noqa: E402
from recorded import GENERATED, KINDS, Twice, inputs, small  # noqa: E402


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


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("held", [3, 4, 5, 9])
def test_chunks_that_a_cache_lost_are_named_and_whole_layers_are_not(held, static):
    torch.manual_seed(0)
    model = small("llama4").eval()
    ids = torch.randint(3, 64, (1, 12))
    with torch.no_grad():
        with regard.record(model) as whole:
            model(ids)
        cache = transformers.StaticCache(config=model.config, max_cache_len=16) if static else transformers.DynamicCache(config=model.config)
        model(ids[:, :held], past_key_values=cache)
        with regard.record(model) as seen:
            model(ids[:, held : held + 1], past_key_values=cache)
            model(ids[:, held + 1 :], past_key_values=cache)
    for one, every in zip(seen.maps, whole.maps, strict=True):
        if one.layer == 0 and held > 4:  # Of a chunk of 5 keys the cache keeps 4 for the query that comes.
            with pytest.raises(ValueError, match="its cache has read more than was seen: record the text from its beginning"):
                one.weights()
            continue
        assert one.positions == list(range(held, 12))
        np.testing.assert_allclose(one.weights(), every.weights()[:, held:], atol=2e-6)


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
