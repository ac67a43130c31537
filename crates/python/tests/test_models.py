"""Models from Python: those in the package, and one of transformers that is written to a folder."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import regard

BICYCLE = "A man in a red shirt is riding a bicycle."
SCENE = Path(__file__).parents[3] / "docs" / "scene.png"


def test_the_embedded_model_translates_and_is_looked_at():
    model = regard.load()
    assert model.kind == "translator" and model.name == "multi30k-en-de"
    german = model.translate(BICYCLE)
    assert german == "Ein Mann in einem roten Hemd fährt Fahrrad."
    assert model.translate([BICYCLE, "", "Two dogs are playing."])[:2] == [german, ""]
    assert model.translate([]) == []
    trace = model.look(BICYCLE)
    assert trace.source == BICYCLE and trace.target == german and len(trace) > 3
    weights = trace.map(0)["weights"]
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-4)


def test_images_get_captions():
    model = regard.load("scenes-captioner")
    assert model.kind == "captioner"
    caption = model.caption(SCENE)
    assert caption.text and caption.trace.target == caption.text and len(caption.trace) == 1
    grey = np.full((32, 32), 200, np.uint8)
    assert isinstance(model.caption(grey).text, str)
    for image, named in ((np.zeros((4, 4, 3)), "uint8"), (np.zeros((4, 4, 2), np.uint8), "2"), (np.zeros(3, np.uint8), "height"), ("no.png", "no.png")):
        with pytest.raises((TypeError, ValueError), match=named):
            model.caption(image)


class Listened:
    """What a model's compiled part is given."""

    def caption(self, image, beam):
        self.image = image
        return "", regard.Trace()


def test_images_of_pil_are_read_as_their_files_are():
    image = pytest.importorskip("PIL.Image")
    inner = Listened()
    model = regard.Model(inner)
    draw = np.random.default_rng(0)
    colours = image.fromarray(draw.integers(0, 256, (6, 5, 3), dtype=np.uint8))
    for mode in ("RGB", "P", "HSV", "YCbCr", "CMYK", "1"):
        model.caption(colours.convert(mode))
        np.testing.assert_array_equal(inner.image, np.asarray(colours.convert(mode).convert("RGB")))
    model.caption(colours.convert("L"))
    np.testing.assert_array_equal(inner.image[..., 0], np.asarray(colours.convert("L")))
    half = colours.copy()
    half.putalpha(image.fromarray(draw.integers(0, 256, (6, 5), dtype=np.uint8)))
    for seen in (half, half.convert("LA")):
        model.caption(seen)
        pixels = np.asarray(seen.convert("RGBA")).astype(int)
        opacity = pixels[..., 3:]
        over_white = (pixels[..., :3] * opacity + 255 * (255 - opacity) + 127) // 255
        np.testing.assert_allclose(inner.image.astype(int), over_white, atol=1)
    for other, named in ((colours.convert("F"), "float32"), (colours.convert("I"), "int32"), (np.asarray(half), "4 channels")):
        with pytest.raises((TypeError, ValueError), match=named):
            model.caption(other)


def test_calls_that_a_model_cannot_answer_say_so(tmp_path):
    translator, captioner = regard.load(), regard.load("scenes-captioner")
    for call in (lambda: captioner.translate("a"), lambda: captioner.look("a"), lambda: captioner.generate("a"), lambda: translator.generate("a")):
        with pytest.raises(TypeError, match="needs"):
            call()
    with pytest.raises(TypeError, match="captioner"):
        translator.caption(SCENE)
    with pytest.raises(TypeError, match="prefix"):
        translator.translate("a", prefix="b")
    with pytest.raises(TypeError, match=r"texts\[1\]"):
        translator.translate(["a", 3])
    with pytest.raises(TypeError, match="`texts` is a int"):
        translator.translate(3)
    for beam in (-1, 0, 2000):
        with pytest.raises(ValueError, match="beam"):
            translator.translate("a", beam=beam)
        with pytest.raises(ValueError, match="beam"):
            captioner.caption(SCENE, beam=beam)
    (tmp_path / "bad.safetensors").write_bytes(b"x" * 100)
    for name in ("no/such-model", str(tmp_path), str(tmp_path / "bad.safetensors")):
        with pytest.raises(ValueError):
            regard.load(name)


def test_threads_and_forked_processes_translate_alike():
    model = regard.load()
    expected, found = model.translate(BICYCLE), [None] * 4

    def work(i):
        found[i] = model.translate(BICYCLE)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    if hasattr(os, "fork"):
        child = os.fork()
        if child == 0:
            os._exit(0 if model.translate(BICYCLE) == expected else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_an_interrupt_ends_long_work():
    program = "import regard; m = regard.load(); print('ready', flush=True); m.translate(['A man in a red shirt is riding a bicycle.'] * 200000)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    threading.Event().wait(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in said


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_an_interrupt_ends_the_wait_for_a_download(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        of_hub = {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "", "NO_PROXY": "127.0.0.1"}
        program = "import regard; regard.load('hf:a/b')"
        process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, env={**os.environ, **of_hub})
        try:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert "KeyboardInterrupt" in said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GPT-2 of two layers with the words w0 to w39."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).eval().save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(40)}, unk_token="w39"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_language_models_write_on_as_transformers(folder):
    import torch
    import transformers

    model = regard.load(folder)
    assert model.kind == "language model"
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    ids = torch.tensor([[3, 7, 11]])
    with torch.no_grad():
        expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0)[0, 3:].tolist()
    found = model.generate("w3 w7 w11", max_tokens=12, temperature=0)
    words = [int(word[1:]) for word in found.text.split()]
    assert words == [i for i in expected if i != 0]
    assert found.ended == ("end" if 0 in expected else "limit")
    drawn = [model.generate("w3", max_tokens=8, temperature=1.0, seed=seed).text for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    first = found.text.split()[1]
    stopped = model.generate("w3 w7 w11", max_tokens=12, temperature=0, stop=[first])
    assert stopped.ended == "stop" and first not in stopped.text
    for bad, named in (({"temperature": -1.0}, "temperature"), ({"top_p": 2.0}, "top_p"), ({"stop": [""]}, "stop")):
        with pytest.raises(ValueError, match=named):
            model.generate("w3", **bad)
    with pytest.raises(TypeError, match="stop"):
        model.generate("w3", stop="w")
    with pytest.raises(ValueError, match="context"):
        model.generate("w1 " * 40)
    with pytest.raises(TypeError, match="max_tokens"):
        model.generate("w3", max_tokens=-1)


def test_language_models_are_looked_at_as_recorded(folder):
    import torch
    import transformers

    trace = regard.load(folder).look("w3 w7 w11 w2")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    with torch.no_grad(), regard.record(theirs) as seen:
        theirs(torch.tensor([[3, 7, 11, 2]]))
    maps = {trace.map(i)["layer"]: trace.map(i)["weights"] for i in range(len(trace))}
    for one in seen.maps:
        np.testing.assert_allclose(maps[one.layer], one.weights(), atol=1e-5)
