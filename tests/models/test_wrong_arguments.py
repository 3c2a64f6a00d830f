"""Arguments of Python calls that are of another type, or out of range: typed errors, no tracebacks.

Python does not check annotations, and a new user tries what other libraries take.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import looked
import regard
from regard import build, look, spec
from regard.evaluation.metrics.texts import Bleu
from regard.families.presets import preset
from regard.models import DualEncoderModel, LanguageModel, SeriesModel, Translator
from regard.system.errors import RegardError, SettingError

TEXT = "The dog sees a cat."


@pytest.fixture(scope="module")
def translator(demo: Path) -> Translator:
    return regard.load(demo, regard.Translator)


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    description = preset("gpt2:tiny", len(looked.WORDS), 32)
    assert isinstance(description, spec.Decoder)
    return LanguageModel(build(description).eval(), description, looked.WORDS)


# What is wrong, with a word of the answer.
OF_A_TRANSLATOR: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a beam in quotes": (lambda m: m.translate(TEXT, beam="8"), "not an integer"),
    "a beam of 2.5": (lambda m: m.translate(TEXT, beam=2.5), "not an integer"),
    "a beam that is true": (lambda m: m.translate(TEXT, beam=True), "not an integer"),
    "a word as the strategy": (lambda m: m.translate(TEXT, "beam"), "not a decoding strategy"),
    "a number as the strategy": (lambda m: m.translate(TEXT, 8), "not a decoding strategy"),
    "a temperature in quotes": (lambda m: m.translate(TEXT, temperature="0.7"), "not a number"),
    "max_length 0": (lambda m: m.tokens(TEXT, max_length=0), "above 0"),
    "max_length in quotes": (lambda m: m.tokens(TEXT, max_length="8"), "above 0"),
    "a text to call": (lambda m: m(TEXT), "not a tensor"),
    "ids of one dimension": (lambda m: m(torch.ones(3, dtype=torch.long)), "texts, tokens"),
    "ids that are fractions": (lambda m: m(torch.ones(1, 3)), "torch.int64"),
    "a device that is none": (lambda m: m.to("banana"), "device 'banana'"),
    "a dtype that is none": (lambda m: m.to(dtype="int7"), "unknown dtype"),
    "looking at nothing": (lambda m: m.look(""), "text"),
    "ablation on one text": (lambda m: look.ablation(m, TEXT, "Hund"), "list of strings"),
    "ablation without targets": (lambda m: look.ablation(m, [TEXT], []), "0 targets"),
    "evaluating on a number": (lambda m: regard.evaluate(m, 5), "not a data set"),  # type: ignore[arg-type]
    "evaluating on one file in a tuple": (
        lambda m: regard.evaluate(m, ("a.txt",)),  # type: ignore[arg-type]
        "not a data set",
    ),
    "a task that is a number": (lambda m: regard.evaluate(m, "x.tsv", task=5), "unknown task 5"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("mistake", list(OF_A_TRANSLATOR))
def test_a_mistake_with_a_translator(mistake: str, translator: Translator) -> None:
    run, words = OF_A_TRANSLATOR[mistake]
    _refused(lambda: run(translator), words)


def _refused(run: Callable[[], Any], words: str) -> None:
    with pytest.raises(RegardError) as refused:
        run()
    assert words in str(refused.value)
    assert refused.value.repair


OF_A_LANGUAGE_MODEL: dict[str, tuple[Callable[[Any], Any], str]] = {
    "tokens in quotes": (lambda m: m.generate("The", max_new_tokens="5"), "not an integer"),
    "half a token": (lambda m: m.generate("The", max_new_tokens=2.5), "not an integer"),
    "the folder of a draft": (lambda m: m.generate("The", draft="gpt2/"), "regard.load"),
    "an id beyond the vocabulary": (lambda m: m(torch.full((1, 3), 10**6)), "0 to"),
    "an id below zero": (lambda m: m(torch.full((1, 3), -1)), "token id -1"),
    "no tokens": (lambda m: m(torch.zeros(1, 0, dtype=torch.long)), "not empty"),
    "a mask of another length": (
        lambda m: m(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 4)),
        "pass [1, 3]",
    ),
}


@pytest.mark.parametrize("mistake", list(OF_A_LANGUAGE_MODEL))
def test_a_mistake_with_a_language_model(mistake: str, language_model: LanguageModel) -> None:
    run, words = OF_A_LANGUAGE_MODEL[mistake]
    _refused(lambda: run(language_model), words)


ATTENTION = spec.Attention(2, 8, 8)
FEEDFORWARD = spec.FeedForward(32, "relu")
TOKENS = spec.Tokens(50, spec.Sinusoidal())
BLOCK = spec.Block(ATTENTION, FEEDFORWARD)
DECODER = spec.Decoder(16, TOKENS, spec.Stack.of(1, BLOCK, spec.CausalMask()))


def _encoder(block: spec.Block) -> Any:
    return build(spec.Encoder(16, TOKENS, spec.Stack.of(1, block)))


def _forecaster() -> Any:
    description: Any = preset("patchtst:tiny", 1, 16)
    return SeriesModel(build(description), description)


def _dual_encoder() -> Any:
    return object.__new__(DualEncoderModel)  # what is refused before anything is read


OF_THE_PACKAGE: dict[str, tuple[Callable[[], Any], str]] = {
    "a device that is None": (lambda: regard.load("x", device=None), "device None"),  # type: ignore[arg-type]
    "a dtype of whole numbers": (lambda: regard.load("x", dtype=torch.int64), "cannot have dtype"),
    "a recipe that is a number": (lambda: regard.train(5), "`recipe`"),  # type: ignore[arg-type]
    "a module as a model": (lambda: regard.train(model=build(DECODER)), "`model`"),  # type: ignore[arg-type]
    "data in a set": (lambda: regard.train(model="gpt2", data={"a"}), "splits()"),  # type: ignore[arg-type]
    "data and pairs": (lambda: regard.train({"pairs": "a.tsv"}, data="b.tsv"), "same data"),
    "a class that is no objective": (lambda: regard.train(data="a.txt", objective=int), "causal"),  # type: ignore[arg-type]
    "a callback that is none": (lambda: regard.train("builtin", on_step=5), "on_step"),  # type: ignore[arg-type]
    "a folder that is a number": (lambda: regard.train("builtin", out=5), "`out`"),  # type: ignore[arg-type]
    "no data to fine-tune on": (lambda: regard.finetune("x", "classify", []), "not a file"),
    "data that is a number": (lambda: regard.finetune("x", "classify", 5), "path"),  # type: ignore[arg-type]
    "a preset that is a number": (lambda: preset(5), "NAME:SIZE"),  # type: ignore[arg-type]
    "heads in quotes": (lambda: spec.Attention("2", 8, 8), "Attention.heads"),  # type: ignore[arg-type]
    "a width of 0": (lambda: spec.Encoder(0, TOKENS, spec.Stack.of(1, BLOCK)), "d_model"),
    "words as a series": (lambda: _forecaster().forecast([["a"]] * 140), "not a series"),
    "an empty caption": (lambda: _dual_encoder().classify("a.png", [""]), "captions"),
    "dropout of 2": (lambda: spec.Block(ATTENTION, FEEDFORWARD, dropout=2), "0 to 1"),
    "dropout in quotes": (
        lambda: spec.Block(ATTENTION, FEEDFORWARD, dropout="0.1"),  # type: ignore[arg-type]
        "a number",
    ),
    "an unknown activation": (
        lambda: _encoder(spec.Block(ATTENTION, spec.FeedForward(32, "reloo"))),  # type: ignore[arg-type]
        "'relu'",
    ),
    "a mask that is a class": (
        lambda: spec.Stack.of(1, BLOCK, spec.CausalMask),  # type: ignore[arg-type]
        "Block.pattern",
    ),
    "cross-attention of an encoder": (
        lambda: _encoder(spec.Block(ATTENTION, FEEDFORWARD, cross=ATTENTION)),
        "a single sequence cannot have cross-attention",
    ),
}


@pytest.mark.parametrize("mistake", list(OF_THE_PACKAGE))
def test_a_mistake_with_the_package(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _refused(*OF_THE_PACKAGE[mistake])
    assert not list(tmp_path.iterdir())


def test_what_is_meant_is_taken(demo: Path, translator: Translator) -> None:
    """One metric without a list, names of devices and data types, a device of torch's."""
    pairs = [(TEXT, "Der Hund sieht eine Katze.")]
    assert regard.evaluate(translator, pairs, "bleu").scores == {"bleu": pytest.approx(100)}
    assert regard.evaluate(translator, pairs, Bleu()).scores == {"bleu": pytest.approx(100)}
    model = regard.load(demo, device=torch.device("cpu"))
    assert model.to("cpu", "bfloat16").dtype == torch.bfloat16


def test_a_model_in_memory_is_fine_tuned_from_its_folder(translator: Translator) -> None:
    with pytest.raises(SettingError, match="model that is fine-tuned"):
        regard.finetune(translator, "translate", "a.tsv", d_model=8)
