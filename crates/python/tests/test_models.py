"""Models from Python: those in the package, and one of transformers that is written to a folder."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import regard

BICYCLE = "A man in a red shirt is riding a bicycle."
ROOT = Path(__file__).parents[3]
SCENE = ROOT / "docs" / "scene.png"


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


def test_images_of_pil_are_read_as_their_files_are(tmp_path):
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
    # A colour that stands for what is transparent.
    for clear, mode in ((tuple(int(x) for x in np.asarray(colours)[0, 0]), "RGB"), (int(np.asarray(colours.convert("L"))[0, 0]), "L")):
        colours.convert(mode).save(tmp_path / "clear.png", transparency=clear)
        with image.open(tmp_path / "clear.png") as seen:
            assert seen.mode == mode
            model.caption(seen)
            opacity = np.asarray(seen.convert("RGBA"))[..., 3:]
            expected = np.where(opacity == 0, 255, np.asarray(seen.convert("RGB")))
            assert (opacity == 0).any() and not (opacity == 0).all()
            np.testing.assert_array_equal(inner.image, expected)
    # Turned by a quarter, with a note that says so: as cameras write what was held upright.
    exif = image.Exif()
    exif[0x0112] = 6
    colours.transpose(image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    with image.open(tmp_path / "turned.png") as turned:
        model.caption(turned)
    np.testing.assert_array_equal(inner.image, np.asarray(colours))
    colours.save(tmp_path / "noted.png", exif=b"no EXIF")
    with image.open(tmp_path / "noted.png") as noted:
        model.caption(noted)
    np.testing.assert_array_equal(inner.image, np.asarray(colours))
    with image.open(SCENE) as scene:
        scene.transpose(image.Transpose.ROTATE_90).save(tmp_path / "scene.png", exif=exif)
    captioner = regard.load("scenes-captioner")
    with image.open(tmp_path / "scene.png") as turned:
        assert captioner.caption(turned).text == captioner.caption(tmp_path / "scene.png").text == captioner.caption(SCENE).text
    for other, named in ((colours.convert("F"), "float32"), (colours.convert("I"), "int32"), (np.asarray(half), "4 channels")):
        with pytest.raises((TypeError, ValueError), match=named):
            model.caption(other)


def test_calls_that_a_model_cannot_answer_say_so(tmp_path):
    translator, captioner = regard.load(), regard.load("scenes-captioner")
    for call in (lambda: captioner.translate("a"), lambda: captioner.look("a"), lambda: captioner.generate("a"), lambda: translator.generate("a")):
        with pytest.raises(TypeError, match="needs"):
            call()
    for image in (SCENE, "no.png"):
        with pytest.raises(TypeError, match="captioner"):
            translator.caption(image)
    with pytest.raises(TypeError, match="prefix"):
        translator.translate("a", prefix="b")
    with pytest.raises(TypeError, match=r"texts\[1\]"):
        translator.translate(["a", 3])
    with pytest.raises(TypeError, match="`texts` is a int"):
        translator.translate(3)
    for call, named in (
        (lambda: translator.translate("a", prefix=3), "prefix"), (lambda: translator.look(3), "text"),
        (lambda: translator.look("a", target=3), "target"), (lambda: translator.generate(3), "prompt"),
    ):
        with pytest.raises(TypeError, match=f"`{named}` is a int, expected a text"):
            call()
    for beam in (-1, 0, 2000):
        with pytest.raises(ValueError, match="beam"):
            translator.translate("a", beam=beam)
        with pytest.raises(ValueError, match="beam"):
            captioner.caption(SCENE, beam=beam)
    (tmp_path / "bad.safetensors").write_bytes(b"x" * 100)
    for name in ("no/such-model", str(tmp_path), str(tmp_path / "bad.safetensors")):
        with pytest.raises(ValueError):
            regard.load(name)


def header_of(path, kind, sizes):
    """A model file of `regard train` without weights."""
    header = {"__metadata__": {"regard.model": json.dumps({"kind": kind, "config": {}, "sizes": sizes})}}
    header = json.dumps(header).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    return path


def test_models_that_commands_use_are_told_of(tmp_path):
    embedded = ROOT / "crates" / "cli" / "models"
    words = {"vocabulary": {"size": 9, "padding": 0, "start": 1, "end": 2}, "classes": 2}
    images, questions = "a classifier of images, .*`regard classify`", "a model that answers questions about images, .*`regard ask`"
    for model, told in (
        ("mnist-resnet", images), (embedded / "mnist-resnet", images), ("scenes-vqa", questions), (embedded / "scenes-vqa" / "model.safetensors", questions),
        (header_of(tmp_path / "detr.safetensors", "detr", {"channels": 3, "size": [64, 64], "classes": 5}), "a detector of objects, .*`regard detect`"),
        (header_of(tmp_path / "texts.safetensors", "transformer-classifier", words), "a classifier of sentences, .*`regard classify`"),
    ):
        with pytest.raises(ValueError, match=f"is {told} uses; `load` opens translators, captioners and language models") as refused:
            regard.load(model)
        assert json.dumps(str(model)) in str(refused.value)


def test_texts_that_are_cut_are_named():
    model, long = regard.load(), "dog " * 1200
    with pytest.warns(UserWarning, match=r"^`texts\[1\]` has \d+ tokens, of which only the first 1000 are read") as told:
        model.translate([BICYCLE, long], beam=1)
    assert all(one.filename == __file__ for one in told)
    with pytest.warns(UserWarning, match="^`text` has"):
        model.look(long)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.translate(BICYCLE) == model.look(BICYCLE).target


def checkpoint_of(name, folder, special, writing):
    """A checkpoint of random weights with the tokens `special`, of which the last are those of an end and of what is unknown, and words."""
    checkpoint = ROOT / "crates" / "models" / "tests" / "golden" / "pretrained" / name
    for file in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint / file, folder)
    words = {word: at for at, word in enumerate([*special, *(f"w{i}" for i in range(53 - len(special)))])}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end, unknown = special[-2:]
    mark = {"SpecialToken": {"id": end, "type_id": 0}}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": at, "content": word, "special": True, **plain} for at, word in enumerate(special)],
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": None,
        "post_processor": {
            "type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, mark],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {end: {"id": end, "ids": [words[end]], "tokens": [end]}},
        },
        "model": {"type": "WordLevel", "vocab": words, "unk_token": unknown},
    }
    files = {"tokenizer.json": tokenizer, "tokenizer_config.json": {"eos_token": end, "unk_token": unknown}, "generation_config.json": writing}
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    return regard.load(folder)


def test_encoder_decoders_name_texts_that_are_cut(tmp_path):
    model = checkpoint_of("bart", tmp_path, ["<s>", "<pad>", "</s>", "<unk>"], {"max_new_tokens": 4})
    assert model.kind == "encoder-decoder"
    with pytest.warns(UserWarning, match="^`texts` has 101 tokens, of which only the first 80 are read"):
        model.translate("w1 " * 98, prefix="w2 w3 ")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "`texts", UserWarning)
        model.translate("w1 " * 79)
        with pytest.raises(UserWarning, match="81 tokens"):
            model.translate("w1 " * 80)
    with pytest.raises(ValueError, match="81"):
        model.look("w1 " * 80)


def test_an_encoder_that_is_to_write_says_what_it_is(tmp_path):
    model = checkpoint_of("bert", tmp_path, ["[PAD]", "[CLS]", "[SEP]", "[UNK]"], {})
    assert model.kind == "encoder"
    with pytest.raises(TypeError, match="is a model of the kind encoder: `generate` needs a language model"):
        model.generate("w1")


def test_translations_that_the_length_limit_ends_are_named(tmp_path):
    model = checkpoint_of("t5", tmp_path, ["<pad>", "</s>", "<unk>"], {"max_new_tokens": 2})
    texts = [f"w{i} w{i + 1} w{i + 2}" for i in range(8)]
    with pytest.warns(UserWarning, match=r"^the translation of `texts\[\d\]` was ended by the length limit, \d+ tokens"):
        assert len(model.translate(texts)) == 8


def test_the_package_brings_its_licences():
    there = {file.name: file for file in metadata.files("regard") if "licenses" in file.parts}
    fonts = ROOT / "crates" / "view" / "fonts"
    licences = {"LICENSE-MIT": ROOT / "LICENSE-MIT", "LICENSE-APACHE": ROOT / "LICENSE-APACHE"}
    for name, file in {**licences, "LICENSE-OFL": fonts / "OFL.txt", "LICENSE-DEJAVU": fonts / "DEJAVU-LICENSE.txt"}.items():
        assert there[name].read_text(encoding="utf-8") == file.read_text(encoding="utf-8")


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
    for bad in ({"max_tokens": -1}, {"max_tokens": 2**70}, {"top_k": -1}, {"seed": -1}, {"seed": 2**64}):
        (name,) = bad
        with pytest.raises(ValueError, match=f"`{name}` is -?[0-9]+, expected 0 to"):
            model.generate("w3", **bad)
    for bad, expected in (({"max_tokens": 1.5}, "float, expected a whole number"), ({"temperature": "a"}, "str, expected a number"), ({"min_p": [0.1]}, "list, expected a number")):
        (name,) = bad
        with pytest.raises(TypeError, match=f"`{name}` is a {expected}"):
            model.generate("w3", **bad)


def test_a_models_own_settings_of_writing_are_obeyed(folder, tmp_path):
    model = regard.load(folder)
    likeliest = model.generate("w3 w7", max_tokens=8, temperature=0, repetition_penalty=3.0).text
    shutil.copytree(folder, tmp_path / "own")
    settings = {"do_sample": True, "temperature": 1.5, "top_k": 1, "repetition_penalty": 3.0, "typical_p": 0.5}
    (tmp_path / "own" / "generation_config.json").write_text(json.dumps(settings))
    own = regard.load(tmp_path / "own")
    with pytest.warns(UserWarning, match="typical_p of the files of .* are not obeyed") as told:
        drawn = [own.generate("w3 w7", max_tokens=8, seed=seed).text for seed in range(3)]
    assert drawn == [likeliest] * 3
    assert all(one.filename == __file__ for one in told)
    with pytest.warns(UserWarning, match="typical_p"):
        given = own.generate("w3 w7", max_tokens=8, seed=5, temperature=0.8, top_k=40, top_p=0.95, min_p=0.0, repetition_penalty=1.0)
    assert given == model.generate("w3 w7", max_tokens=8, seed=5)
    (tmp_path / "own" / "generation_config.json").write_text('{"do_sample": true, "temperature": -1}')
    with pytest.raises(ValueError, match="temperature"):
        own.generate("w3")


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
