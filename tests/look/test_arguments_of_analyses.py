"""Arguments of the analyses that are of another type, out of range or without effect.

Each is refused by a typed error that ends with a repair, and none is answered as if it were another.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

import looked
import regard
from regard import look
from regard.decode.strategy import Greedy, Sampling
from regard.models import Model, Translator
from regard.system.errors import RegardError, did_you_mean

TEXT = "The dog sees a cat."
OTHER = "The cat sees a dog."
TARGET = "Der Hund sieht eine Katze."
CROSS = "decoder.1.cross"

Call = Callable[[Any], Any]


@pytest.fixture(scope="module")
def translator(demo: Path) -> Translator:
    return regard.load(demo, regard.Translator)


@pytest.fixture(scope="module")
def run(translator: Translator) -> look.Look:
    ask = ["*.weights", "*.embedded", "*.residual"]
    return translator.look(TEXT, target=TARGET, ask=ask)


def _refused(call: Callable[[], Any], words: str) -> RegardError:
    with pytest.raises(RegardError) as refused:
        call()
    assert words in str(refused.value)
    assert refused.value.repair
    return refused.value


# ------------------------------------------------------------------ a translator

# What is wrong, with a word of the answer.
OF_A_TRANSLATOR: dict[str, tuple[Call, str]] = {
    # which probe, position, head or layer
    "an unknown probe": (lambda m: look.patched(m, TEXT, OTHER, "nonsense"), "no probe to patch"),
    "a probe that is read only": (
        lambda m: look.patched(m, TEXT, OTHER, "encoder.0.self.weights"),
        "no probe to patch",
    ),
    "a pattern of probes": (lambda m: look.patched(m, TEXT, OTHER, "*.residual"), "no probe"),
    "an output position": (lambda m: look.attribution(m, TEXT, positions=[99]), "position 99"),
    "one far before the start": (
        lambda m: look.attribution(m, TEXT, positions=[-99]),
        "position -99",
    ),
    "a position to patch at": (lambda m: look.patching(m, TEXT, OTHER, at=99), "position 99"),
    # which texts
    "a path of a text": (lambda m: look.look(m, Path("a.txt")), "reads text"),
    "ids without a batch": (lambda m: look.look(m, torch.tensor([5, 6])), "batch of one"),
    "ids of two texts": (lambda m: look.translate(m, torch.tensor([[5], [6]])), "batch of one"),
    "no sentences": (lambda m: look.roles(m, []), "list of sentences is empty"),
    # how many
    "a top below 0": (lambda m: look.steps(m, TEXT, top=-1), "top = -1"),
    "a length below 0": (lambda m: look.cache(m, TEXT, length=-1), "length = -1"),
    "positions below 0": (lambda m: look.positions(m, length=-1), "length = -1"),
    "positions in quotes": (lambda m: look.positions(m, length="8"), "length = '8'"),  # type: ignore[arg-type]
    "a batch size of 0": (lambda m: look.roles(m, size=0), "size = 0"),
    # how to decode
    "a strategy in quotes": (lambda m: look.steps(m, TEXT, "sampling"), "not a decoding strategy"),  # type: ignore[arg-type]
    "a strategy by number": (lambda m: look.steps(m, TEXT, 4), "not a decoding strategy"),  # type: ignore[arg-type]
    "settings by number": (lambda m: look.translate(m, TEXT, 4), "not a decoding strategy"),  # type: ignore[arg-type]
    "a beam by number": (lambda m: look.beam(m, TEXT, 4), "not a decoding strategy"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("mistake", list(OF_A_TRANSLATOR))
def test_a_mistake_with_a_translator(mistake: str, translator: Translator) -> None:
    call, words = OF_A_TRANSLATOR[mistake]
    _refused(lambda: call(translator), words)


OF_A_RECORDING: dict[str, tuple[Call, str]] = {
    "a probe that was not recorded": (lambda run: run["logits"], "ask=['logits']"),
    "a row below 0": (lambda run: run.weights(CROSS, rows=[-1]), "row -1"),
    "alignment by a head": (lambda run: look.alignment(run, heads=[99]), "head 99"),
    "a lens beyond the end": (lambda run: look.lens(run, positions=[99]), "position 99"),
    "a lens of nothing": (lambda run: look.lens(run, top=-1), "top = -1"),
}


@pytest.mark.parametrize("mistake", list(OF_A_RECORDING))
def test_a_mistake_with_a_recording(mistake: str, run: look.Look) -> None:
    call, words = OF_A_RECORDING[mistake]
    _refused(lambda: call(run), words)


def test_positions_from_the_end_and_numbers_of_numpy_are_right(
    translator: Translator, run: look.Look
) -> None:
    whole = look.attribution(translator, TEXT, target=TARGET)
    last = look.attribution(translator, TEXT, target=TARGET, positions=[-1])
    np.testing.assert_allclose(last.values, whole.values[-1:], atol=1e-5)
    every = look.lens(run)
    assert look.lens(run, positions=[-1]).positions == every.positions[-1:]
    by_numpy = run.weights(CROSS, rows=np.array([2, 0]), heads=torch.tensor([1]))  # type: ignore[arg-type]
    np.testing.assert_allclose(by_numpy, run.weights(CROSS)[[1]][:, [2, 0]], atol=1e-6)


def test_the_strategy_of_a_translation_may_stand_for_its_settings(translator: Translator) -> None:
    greedy = look.translate(translator, TEXT, Greedy())[0]
    assert look.written(translator, greedy) == look.steps(translator, TEXT).output
    assert look.steps(translator, TEXT, Sampling(seed=1)).steps


def test_the_circuit_of_a_folder_may_be_asked_by_its_name(demo: Path, tmp_path: Path) -> None:
    assert look.stored_circuit(str(demo)) == look.stored_circuit(demo)
    assert look.stored_circuit(str(tmp_path)) is None
    (tmp_path / "circuit.json").write_text("{")
    _refused(lambda: look.stored_circuit(tmp_path), "circuit.json")


@pytest.mark.parametrize("name", [3, None, ["logits"], ("a", 1)])
def test_what_is_no_name_is_not_like_any(name: object) -> None:
    assert did_you_mean(name, ["logits", "residual"]) in (
        "known: logits, residual",
        "did you mean 'logits'?",
    )


@pytest.mark.parametrize(
    "analysis",
    [
        lambda m: look.attribution(m, TEXT, target=TARGET),
        lambda m: look.importance(m, [TEXT], [TARGET]),
    ],
)
@pytest.mark.parametrize("precision", [None, "int8"])
def test_gradients_of_packed_weights_are_refused(
    analysis: Call, precision: str | None, demo: Path
) -> None:
    packed = regard.load(demo, regard.Translator).prepare_for_inference(precision)
    _refused(lambda: analysis(packed), "load the model again")
    assert look.look(packed, TEXT).names  # what needs no gradients stays possible


# ------------------------------------------------------------------ models of one sequence


@pytest.mark.parametrize("kind", ["writer", "reader", "classifier"])
@pytest.mark.parametrize("analysis", [look.ablation, look.importance, look.batch])
def test_targets_without_effect_are_refused(kind: str, analysis: Call) -> None:
    model = looked.MODELS[kind]()
    call: Any = analysis
    _refused(lambda: call(model, ["The dog"], ["x"]), "no target")
    assert call(model, ["The dog"])


# ------------------------------------------------------------------ images and sound


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    (folder / "cat.png").write_bytes(looked.png())
    (folder / "a.wav").write_bytes(looked.wav())
    return folder


@pytest.fixture(scope="module")
def opened(folder: Path) -> dict[str, Model]:
    kinds = ("vit", "clip", "wav2vec2", "whisper")
    folders = {kind: looked.save_sensing(kind, folder / kind) for kind in kinds}
    _save_tokenizer(folders["clip"])
    return {kind: regard.load(path) for kind, path in folders.items()}


def _save_tokenizer(folder: Path) -> None:
    """A tokenizer of two words for CLIP, whose texts end with token 36."""
    words = {"<unk>": 0, "a": 1, "cat": 2, "<end>": 36}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", 36)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


FILES = {"vit": "cat.png", "wav2vec2": "a.wav", "whisper": "a.wav"}


@pytest.mark.parametrize("kind", list(FILES))
def test_a_file_is_read_from_its_name_and_from_its_path(
    kind: str, opened: dict[str, Model], folder: Path
) -> None:
    model = opened[kind]
    path = folder / FILES[kind]
    tensor = model.read_medium(path.read_bytes()).inputs
    for given in (path, str(path)):
        recordings = [model.look(given), look.look(model, given)]
        for recording in recordings:
            torch.testing.assert_close(recording.model_inputs.inputs, tensor)
        assert look.attribution(model, given).numpy().size
    if kind == "whisper":
        assert look.steps(model, path).steps == look.steps(model, str(path)).steps
        assert look.cache(model, str(path)).tokens


@pytest.mark.parametrize("kind", list(FILES))
@pytest.mark.parametrize("name", ["nofile.png", "nofile", "no file.wav", ".", "x" * 300, "a\0b"])
def test_a_name_of_no_file_says_so(kind: str, name: str, opened: dict[str, Model]) -> None:
    error = _refused(lambda: opened[kind].look(name), repr(name))
    assert f"readable {opened[kind].medium} file" in error.repair


@pytest.mark.filterwarnings("ignore:the model does not know")
def test_a_caption_that_is_a_name_of_a_file_is_refused(
    opened: dict[str, Model], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    clip = opened["clip"]
    shutil.copy("cat.png", "dog.png")
    assert clip.look("cat.png").model_inputs.backdrop is not None
    assert look.look(clip, Path("dog.png")).model_inputs.backdrop is not None
    _refused(lambda: clip.look("nofile.png"), "Path('nofile.png')")
    _refused(lambda: clip.look("nofile.JPEG"), "Path('nofile.JPEG')")
    assert clip.look("nofile.png ").model_inputs.backdrop is None  # as the repair says
    assert clip.look("a cat.png").model_inputs.backdrop is None
    _refused(lambda: look.look(clip, Path("nofile.png")), "no file 'nofile.png'")


def test_a_text_of_a_page_opens_no_file(
    opened: dict[str, Model], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The studio hands texts of its pages to these functions.
    clip = opened["clip"]
    monkeypatch.chdir(folder)
    shutil.copy("cat.png", "unnamed")
    monkeypatch.setattr(type(clip), "read_medium", lambda *_: pytest.fail("a file was opened"))
    assert look.look(clip, "unnamed").model_inputs.backdrop is None
    _refused(lambda: look.look(clip, "cat.png"), "looks like a file name")


def test_letters_of_ctc_name_the_function_that_aligns_them(
    opened: dict[str, Model], folder: Path
) -> None:
    model = opened["wav2vec2"]
    path = folder / "a.wav"
    error = _refused(lambda: look.alignment(model.look(path)), "CTC")
    assert "ctc_alignment(" in error.repair
    recording = model.look(path, ask="logits")  # as the repair says
    count = recording["logits"].shape[-1]
    names = {i: chr(97 + i) for i in range(count)}
    assert look.ctc_alignment(recording, names, 0).letters is not None
    call: Any = look.ctc_alignment
    for blank in (999, -1):
        _refused(lambda blank=blank: call(recording, names, blank), "label")  # type: ignore[misc]
