"""Numbers out of range, and weights that are not finite, are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import looked
import regard
from command_line import Command
from regard import build, look, spec
from regard.core.caches.kv_cache import MOST_SHARED_BEAMS
from regard.data.series import Series
from regard.decode.strategy import BeamSearch, Greedy, Sampling, Strategy
from regard.families.presets import preset
from regard.models import GraphModel, LanguageModel, Model, SeriesModel
from regard.models.memory_network import MemoryNetworkModel
from regard.system import memory
from regard.system.errors import DataError, ModelError
from regard.training.diagnostics import nonfinite
from regard.wirings.decoder import Decoder

TEXT = "The dog sees a cat.\n"


def test_a_beam_beyond_the_memory_is_refused_before_it_begins(
    command: Command, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("translate", trained, "--beam", 10**9, text=TEXT).refused("use a beam of", "free")
    monkeypatch.setattr(memory, "available", lambda: 100_000_000)
    command("translate", trained, "--beam", "100000", text=TEXT).refused("hypotheses")
    assert command("translate", trained, "--beam", "50", text=TEXT).code == 0


@pytest.mark.parametrize("beam", [4, 501])
def test_a_beam_that_may_take_hours_is_announced_once(
    beam: int, command: Command, demo: Path
) -> None:
    done = command("translate", demo, "--beam", beam, "--max-length", "0,2", text=TEXT * 2)
    assert done.code == 0, done.err
    assert done.err.count("may take hours") == (beam > 500)


def test_a_beam_that_is_looked_at_is_bounded_too(command: Command, trained: Path) -> None:
    command("look", trained, TEXT.strip(), "--what", "beam", "--beam", 10**9).refused("free")


@pytest.mark.parametrize("width", [MOST_SHARED_BEAMS, MOST_SHARED_BEAMS + 1])
def test_a_wide_beam_takes_memory_by_its_width_and_not_its_square(width: int) -> None:
    """Beams that share rows have a mask of all against all: 100,000 of them were killed."""
    description = preset("gpt2:tiny", 9, 8, layers=1, d_model=4, heads=1)
    model = build(description)
    assert isinstance(model, Decoder)
    prompt = model.encode(torch.ones(1, 1, dtype=torch.long))
    state = model.start(prompt, width=width, capacity=4)
    state.share_rows()
    assert (state.ancestry is not None) == (width <= MOST_SHARED_BEAMS)


def test_a_wide_beam_finds_what_a_narrower_cache_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    description = preset("gpt2:tiny", len(looked.WORDS), 32, layers=2, d_model=16, heads=2)
    model = LanguageModel(build(description), description, looked.WORDS)  # type: ignore[arg-type]
    shared = model.generate("The dog", beam=8, max_new_tokens=6)
    monkeypatch.setattr("regard.core.caches.kv_cache.MOST_SHARED_BEAMS", 4)
    assert model.generate("The dog", beam=8, max_new_tokens=6) == shared


@pytest.mark.parametrize(
    "flags",
    [
        ("--beam", "0"),
        ("--beam", "-3"),
        ("--n-best", "0"),
        ("--sample", "--temperature", "nan"),
        ("--sample", "--temperature", "inf"),
        ("--sample", "--temperature", "-1"),
        ("--sample", "--top-p", "nan"),
        ("--sample", "--top-k", "-1"),
        ("--sample", "--min-p", "nan"),
        ("--length-penalty", "gnmt:nan"),
        ("--max-length", "nan,5"),
        ("--max-length", "1,-50"),
        ("--device", "mps"),
        ("--device", "meta"),
        ("--device", "gpu"),
    ],
    ids=" ".join,
)
def test_every_number_is_checked(flags: tuple[str, ...], command: Command, trained: Path) -> None:
    command("translate", trained, *flags, text=TEXT).refused()


def test_memory_that_runs_out_is_no_unexpected_error(
    command: Command, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes\nat")

    monkeypatch.setattr("regard.models.translator.decode", fail)
    command("translate", trained, text=TEXT).refused("not enough memory", "--batch-tokens")


@pytest.fixture
def broken(trained: Path, tmp_path: Path) -> Path:
    model = regard.load(trained)
    with torch.no_grad():
        next(model.model.parameters()).fill_(torch.nan)
    return model.save(tmp_path / "broken")


def test_nan_weights_are_an_error_of_every_command(
    command: Command, broken: Path, files: Path
) -> None:
    for flags in ((), ("--beam", "1"), ("--sample",)):
        command("translate", broken, *flags, text=TEXT).refused("not a number")
    command("evaluate", broken, "--source", files / "s.en", "--target", files / "s.de").refused(
        "not a number"
    )
    command("predict", broken, TEXT.strip()).refused("not a number")


VIEWS = {
    "attention": (),
    "alignment": ("--target", "Der Hund."),
    "entropy": ("--target", "Der Hund."),
    "lens": ("--target", "Der Hund."),
    "rollout": ("--target", "Der Hund."),
    "attribution": ("--target", "Der Hund."),
    "ablation": ("--target", "Der Hund."),
    "steps": (),
    "beam": (),
    "cache": (),
}


@pytest.mark.parametrize("view", list(VIEWS))
def test_nothing_is_drawn_of_nan_weights(view: str, command: Command, broken: Path) -> None:
    """A given target is not decoded, which would fail: the forward pass itself is checked."""
    flags = ("--what", view, *VIEWS[view])
    command("look", broken, TEXT.strip(), *flags).refused("not a number", "holds NaN or infinity")


@pytest.mark.parametrize("name", ["gpt2:tiny", "bert:tiny"])
def test_no_picture_of_nan_weights_in_python(name: str) -> None:
    description = preset(name, len(looked.WORDS), 32, layers=2, d_model=16, heads=2)
    model = Model(build(description), description)
    ids = torch.tensor([[1, 2, 3]])
    assert model.look(ids).attention(f"{_stack(model)}.0.self").weights.shape == (2, 3, 3)
    with torch.no_grad():
        last = model.model.stack.blocks[-1]  # type: ignore[union-attr, index]
        next(last.feedforward.parameters()).fill_(torch.inf)  # type: ignore[union-attr]
    with pytest.raises(ModelError, match=r"feedforward.* holds NaN or infinity"):
        model.look(ids)
    _fill_with_nan(model)
    with pytest.raises(ModelError, match="not a number"):
        look.cache(model, ids) if name == "gpt2:tiny" else look.attribution(model, ids)


def _stack(model: Model) -> str:
    return next(iter(look.probes(model.model))).split(".")[0]


def test_no_picture_of_positions_that_are_not_numbers() -> None:
    description = preset("gpt2:tiny", len(looked.WORDS), 32, layers=1, d_model=16, heads=2)
    model = Model(build(description), description)
    assert look.positions(model).products.shape == (32, 32)
    with torch.no_grad():
        model.model.tokens.position.table[5] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(ModelError, match=r"position.* holds NaN or infinity"):
        look.positions(model)


@pytest.mark.parametrize("strategy", [Greedy(), Sampling(), BeamSearch(3)])
def test_nan_weights_in_python(broken: Path, trained: Path, strategy: Strategy) -> None:
    with pytest.raises(ModelError, match="holds NaN or infinity"):
        regard.load(broken, regard.Translator)
    model = regard.load(trained, regard.Translator)
    _fill_with_nan(model)
    with pytest.raises(ModelError, match="holds NaN or infinity"):
        model.translate("The dog.", strategy)
    with pytest.raises(ModelError, match="not a number"):
        model.perplexity(["The dog."], ["Der Hund."])


def test_nan_weights_of_a_language_model_have_no_perplexity(
    command: Command, files: Path, tmp_path: Path
) -> None:
    description = preset("gpt2:tiny", len(looked.WORDS), 32, layers=1, d_model=16, heads=2)
    model = LanguageModel(build(description), description, looked.WORDS)  # type: ignore[arg-type]
    _fill_with_nan(model)
    folder = model.save(tmp_path / "model")
    command("evaluate", folder, "--data", files / "s.en").refused("not a number")


def test_nan_weights_of_a_forecaster_are_no_perfect_forecast(tmp_path: Path) -> None:
    """Metrics leave out NaN, which is a missing value in the data: the error was 0."""
    description = preset("patchtst:tiny", 1, 16)
    model = SeriesModel(build(description), description)  # type: ignore[arg-type]
    series = np.sin(np.arange(140.0))[:, None]
    assert np.isfinite(model.forecast(series)).all()
    _fill_with_nan(model)
    with pytest.raises(ModelError, match="not a number"):
        model.forecast(series)
    with pytest.raises(ModelError, match="not a number"):
        regard.evaluate(model, [Series(series.astype(np.float32), ("x",))])


def test_nan_weights_of_a_graph_model(tmp_path: Path) -> None:
    (tmp_path / "nodes.tsv").write_text("0\ta\ttrain\t0\n1\tb\ttrain\t1\n")
    (tmp_path / "edges.tsv").write_text("0\t1\n")
    description = preset("graph:tiny", 2, features=2)
    model = GraphModel(build(description), description)  # type: ignore[arg-type]
    assert len(model.classify(tmp_path)) == 2
    _fill_with_nan(model)
    with pytest.raises(ModelError, match="not a number"):
        model.classify(tmp_path)


def _fill_with_nan(model: Model) -> None:
    with torch.no_grad():
        next(model.model.parameters()).fill_(torch.nan)


def test_nan_weights_are_neither_converted_nor_verified(
    command: Command, broken: Path, tmp_path: Path
) -> None:
    command("convert", broken, tmp_path / "converted").refused("not a number")
    assert not (tmp_path / "converted").exists()
    command("verify", broken).refused("not a number")


def test_nan_weights_neither_learn_nor_teach(
    command: Command, broken: Path, files: Path, tmp_path: Path
) -> None:
    pairs = ("--source", files / "s.en", "--target", files / "s.de", "--preset", "tiny")
    out = tmp_path / "run"
    data = tmp_path / "pairs.tsv"
    data.write_text("The dog sees.\tDer Hund sieht.\n" * 9)
    flags = ("--task", "translate", "--data", data, "--out", out)
    command("finetune", broken, *flags).refused("not a number")
    command("train", *pairs, "--steps", "2", "--teacher", broken, "--out", out).refused(
        "not a number"
    )
    assert not out.exists()


def test_packed_weights_can_be_looked_through_for_nan() -> None:
    """oneDNN's have no values to ask, and the teacher of a run that diverged has such."""
    packed = torch.ones(4, 4).to_mkldnn()
    assert not nonfinite._is_bad([packed])
    assert nonfinite._is_bad([packed, torch.tensor([torch.nan])])


def test_no_token_of_nan_weights_is_shown() -> None:
    description = preset("gpt2:tiny", len(looked.WORDS), 32, layers=1, d_model=16, heads=2)
    model = LanguageModel(build(description), description, looked.WORDS)  # type: ignore[arg-type]
    draft = LanguageModel(build(description), description, looked.WORDS)  # type: ignore[arg-type]
    model.generate("The dog", draft=draft, max_new_tokens=5)
    _fill_with_nan(draft)
    with pytest.raises(ModelError, match="not a number"):
        model.generate("The dog", draft=draft, max_new_tokens=5)
    shown: list[str] = []
    with pytest.raises(ModelError, match="not a number"):
        draft.generate("The dog", stream=shown.append)
    assert not shown


def test_nan_weights_answer_no_story() -> None:
    story = "Mary went to the kitchen. Where is Mary?"
    tokenizer = looked.UNFRAMED
    description = spec.MemoryNetwork(8, len(tokenizer))
    model = MemoryNetworkModel(build(description), description, tokenizer)  # type: ignore[arg-type]
    answer = tokenizer.tokens([len(tokenizer) - 1])[0]
    assert "accuracy" in regard.evaluate(model, [(story, answer)]).scores
    with pytest.raises(DataError, match="is in the vocabulary of the model"):
        regard.evaluate(model, [(story, "zebra crossing")])
    _fill_with_nan(model)
    with pytest.raises(ModelError, match="not a number"):
        regard.evaluate(model, [(story, answer)])


def test_nan_weights_fill_no_masks(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The dog sees the cat. A dog sees a cat.\n" * 50)
    settings = {"d_model": 16, "heads": 2, "layers": 1, "threads": 1, "context": 32}
    run = regard.train(settings, model="bert:tiny", text=str(text), steps=1, out=tmp_path / "run")
    model = regard.load(run.folder)
    assert "accuracy" in regard.evaluate(model, str(text), "accuracy").scores
    _fill_with_nan(model)
    with pytest.raises(ModelError, match="not a number"):
        regard.evaluate(model, str(text), "accuracy")
