"""One line for all: model, data and objective are chosen by themselves, from outside too."""

from __future__ import annotations

import json
import multiprocessing
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard import spec
from regard.families.decoders import gpt2
from regard.system.errors import DataError, ModelError, SettingError, TrainingInterrupted
from regard.training import model_spec
from regard.training.recipe import loading
from regard.training.recipe.objectives import OBJECTIVES
from regard.training.run import resume
from regard.training.run_folder import RunFolder, begin

ROOT = Path(__file__).parents[2]
QUICK: dict[str, Any] = {
    "steps": 2, "warmup_steps": 1, "batch_tokens": 256, "context": 32, "vocabulary": 300, "samples": 0,
    "validate_every": 2, "save_every": 2, "threads": 1, "device": "cpu",
}  # fmt: skip
# A model that is fine-tuned brings its tokenizer.
TUNED = {key: value for key, value in QUICK.items() if key != "vocabulary"}
SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 24, "heads": 2, "layers": 1}
TEXT = "".join(
    f"The {noun} {verb} the {thing}.\n"
    for noun in ("dog", "cat", "owl")
    for verb in ("sees", "eats", "hears")
    for thing in ("man", "woman", "child")
)


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 8)
    return str(path)


# ------------------------------------------------------------------ from outside the package


def test_an_objective_and_data_from_outside_resume_bit_for_bit(
    tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    path = ROOT / "examples" / "own_objective.py"
    assert len(path.read_text().splitlines()) <= 60
    example = runpy.run_path(str(path))
    focal, counting = example["FocalLM"], example["Counting"]
    settings = QUICK | {"tokenizer": "characters", "steps": 6, "save_every": 3}
    arguments: dict[str, Any] = {
        "model": "llama:tiny", "data": counting(200), "objective": focal, **SIZES,
    }  # fmt: skip
    whole = regard.train(settings, **arguments, out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        regard.train(settings, **arguments, out=tmp_path / "cut", on_step=stop_at(4))
    with pytest.raises(SettingError, match="started with the objective FocalLM"):
        resume(tmp_path / "cut", quiet=True)
    # All examples are in the run folder: the source is not needed again.
    resumed = resume(tmp_path / "cut", quiet=True, objective=focal)
    expected = load_file(whole.folder / "model.safetensors")
    weights = load_file(resumed.folder / "model.safetensors")
    assert all(expected[name].equal(weights[name]) for name in expected)
    plain = regard.train(settings, **arguments | {"objective": "causal"}, out=tmp_path / "plain")
    other = load_file(plain.folder / "model.safetensors")
    assert not all(expected[name].equal(other[name]) for name in expected)


# ------------------------------------------------------------------ models


def test_a_spec_in_a_file_is_the_model(text: str, tmp_path: Path) -> None:
    """Our own as JSON and TOML, or a config.json; with the vocabulary of the tokenizer."""
    model = gpt2.preset("tiny", 777, 32, **SIZES)
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_dict(model)))
    regard.LanguageModel(regard.build(model), model, None).save(tmp_path / "model")
    for name in ("spec.json", "model/config.json"):
        changes = {"spec": str(tmp_path / name), "text": text, "objective": "causal"}
        result = regard.train(QUICK | changes, out=tmp_path / "run" / name)
        opened: Any = regard.load(result.folder)
        expected = gpt2.preset("tiny", len(opened.tokenizer), 32, **SIZES)
        assert opened.spec == expected
    (tmp_path / "spec.toml").write_text(_toml(spec.to_dict(model)))
    assert model_spec.read_file(tmp_path / "spec.toml") == model
    with pytest.raises(SettingError, match="decided by the spec"):
        loading.load(None, changes | {"model": "gpt2"})


def _toml(values: dict[str, Any], prefix: str = "") -> str:
    """Tables for objects; TOML has no null, so that such keys are left out."""
    plain, tables = [], []
    for key, value in values.items():
        if isinstance(value, dict):
            tables += [f"[{prefix}{key}]", _toml(value, f"{prefix}{key}.")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            tables += [f"[[{prefix}{key}]]\n{_toml(one, f'{prefix}{key}.')}" for one in value]
        elif value is not None:
            plain.append(f"{key} = {json.dumps(value)}")
    return "\n".join(plain + tables)


def test_settings_of_architecture_hold_for_every_wiring() -> None:
    for model, objective in (("gpt2", "causal"), ("bert", "masked"), ("t5", "span")):
        settings = {"text": "x", "objective": objective, "model": f"{model}:tiny", "context": 32}
        recipe = loading.load(None, settings | {"position": "rope", "residual": "pre"})
        description: Any = model_spec.describe(recipe, 50)
        for stack in description.stacks.values():
            assert stack.block.position == spec.Rope()
            assert stack.block.residual == spec.PreNorm()
        untied: Any = model_spec.describe(
            loading.load(None, settings | {"tie_embeddings": "none"}), 50
        )
        assert not getattr(untied, "tied", False)
        assert getattr(untied, "share", "none") == "none"


def test_word_vectors_and_frozen_embeddings_of_a_language_model(text: str, tmp_path: Path) -> None:
    result = regard.train(
        QUICK, text=text, model="gpt2:tiny", freeze_embeddings=True, **SIZES, out=tmp_path / "run"
    )
    model: Any = regard.load(result.folder)
    torch.manual_seed(1)
    fresh = model_spec.build_initialized(
        model.spec, loading.load(None, {"text": text, "model": "gpt2"})
    )
    assert torch.equal(model.model.tokens.table.weight, fresh.tokens.table.weight)
    changed = model.model.stack.blocks[0].attention.output.weight
    assert not torch.equal(changed, fresh.stack.blocks[0].attention.output.weight)


def test_a_run_keeps_the_model_it_began_with(text: str, tmp_path: Path) -> None:
    result = regard.train(QUICK, text=text, model="gpt2:tiny", **SIZES, out=tmp_path / "run")
    run_folder = RunFolder(result.folder)
    assert model_spec.read(run_folder) == regard.load(result.folder).spec


@pytest.mark.parametrize("model", ["vit", "whisper", "clip", "wav2vec2"])
def test_what_reads_no_text_says_so(model: str) -> None:
    with pytest.raises(SettingError, match=r"learns from (images|recordings)"):
        loading.load(None, {"text": "x", "model": f"{model}:tiny"})


# ------------------------------------------------------------------ objectives


def test_every_objective_has_its_class() -> None:
    from regard.training.setup import objective_class

    for name in OBJECTIVES:
        assert objective_class(name).name == name
    with pytest.raises(SettingError, match="did you mean 'masked'"):
        loading.load(None, {"text": "x", "objective": "maskd"})


def test_a_number_is_learnt_and_read_by_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["awful", "bad", "good", "great"]
    path = tmp_path / "rated.tsv"
    path.write_text("".join(f"a {words[i % 4]} film {i % 3}\t{i % 4}\n" for i in range(60)))
    settings = QUICK | {"steps": 80, "learning_rate": 0.01, "validate_every": 80, "save_every": 80}
    result = regard.train(
        settings, text=str(path), valid_text=str(path), objective="regress", model="bert:tiny",
        **SIZES | {"dropout": 0.0, "attention_dropout": 0.0}, schedule="constant", metric="mse",
        out=tmp_path / "run",
    )  # fmt: skip
    score: Any = result.scores["valid"]
    assert score.pearson > 0.9
    assert score.mse < 0.3
    theirs = transformers.BertForSequenceClassification.from_pretrained(result.folder)
    assert theirs.config.problem_type == "regression"
    assert theirs.config.num_labels == 1
    again = regard.finetune(
        result.folder, "regress", path, out=tmp_path / "again", epochs=1, threads=1, device="cpu"
    )
    assert again.scores == {}  # too few examples to hold some out
    (tmp_path / "bad.tsv").write_text("a text\tgood\n")
    with pytest.raises(DataError, match="'good' is not a number"):
        regard.finetune(result.folder, "regress", tmp_path / "bad.tsv", out=tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_pairs_that_belong_together_come_near(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    colours = ["red", "blue", "green", "black", "white", "grey", "pink", "brown"]
    path.write_text("".join(f"a {c} car\tthe vehicle is {c}\n" for c in colours))
    settings = QUICK | {"steps": 60, "learning_rate": 0.01, "validate_every": 60, "save_every": 60}
    result = regard.train(
        settings, text=str(path), valid_text=str(path), objective="contrastive", model="bert:tiny",
        **SIZES | {"dropout": 0.0, "attention_dropout": 0.0}, schedule="constant",
        out=tmp_path / "run",
    )  # fmt: skip
    score: Any = result.scores["valid"]
    assert score.accuracy == 100.0
    model: Any = regard.load(result.folder)
    assert model.spec.head is None
    first = torch.nn.functional.normalize(model.embed([f"a {c} car" for c in colours]), dim=-1)
    second = torch.nn.functional.normalize(
        model.embed([f"the vehicle is {c}" for c in colours]), dim=-1
    )
    assert torch.equal((first @ second.T).argmax(dim=1), torch.arange(len(colours)))


@pytest.mark.parametrize("objective", ["tag", "answer"])
def test_heads_of_new_models(objective: str, tmp_path: Path) -> None:
    """What only fine-tuning could: a tagger and a question answerer from scratch."""
    path = tmp_path / ("data.conll" if objective == "tag" else "data.jsonl")
    nouns = ("dog", "cat", "owl")
    if objective == "tag":
        path.write_text("\n".join(f"the O\n{n} B-ANIMAL\nruns O\n" for n in nouns))
    else:
        rows = [
            {"question": "who?", "context": f"the {n} runs", "answer_start": 4, "text": n}
            for n in nouns
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = regard.train(
        QUICK, text=str(path), valid_text=str(path), objective=objective, model="roberta:tiny",
        **SIZES, out=tmp_path / "run",
    )  # fmt: skip
    model: Any = regard.load(result.folder)
    assert objective in model.tasks
    assert model.family == "roberta"


def test_a_decoder_classifies_too(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("".join(f"the {n} runs\t{n}\n" for n in ("dog", "cat", "owl") * 5))
    result = regard.train(
        QUICK, text=str(path), objective="classify", model="llama:tiny", **SIZES,
        out=tmp_path / "run",
    )  # fmt: skip
    model: Any = regard.load(result.folder)
    assert model.family == "llama"
    assert set(model.classify("the dog runs")) == {"dog", "cat", "owl"}


def test_a_model_goes_on_with_its_own_objective(text: str, tmp_path: Path) -> None:
    """Fine-tuning is training from a folder: masked tokens, spans, and the next token."""
    for model, objective in (("bert", "masked"), ("t5", "span"), ("bart", "denoise")):
        settings = QUICK | SIZES | {"vocabulary": 400}
        base = regard.train(
            settings, text=text, model=f"{model}:tiny", out=tmp_path / f"{model} base"
        )
        result = regard.train(
            TUNED, base=str(base.folder), text=text, objective=objective, out=tmp_path / model
        )
        assert regard.load(result.folder).spec == regard.load(base.folder).spec
    with pytest.raises(ModelError, match="no model for causal"):
        regard.train(
            TUNED, base=str(base.folder), text=text, objective="causal", out=tmp_path / "no"
        )
    with pytest.raises(SettingError, match="d_model is decided by the model"):
        regard.train(
            TUNED, base=str(base.folder), text=text, objective="denoise", d_model=8,
            out=tmp_path / "no",
        )  # fmt: skip
    assert not (tmp_path / "no").exists()


def test_a_fine_tuned_gpt2_resumes_bit_for_bit(
    text: str, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    """Its files hold matrices transposed, so that parameters lie in memory by columns."""
    base = regard.train(QUICK, text=text, model="gpt2:tiny", **SIZES, out=tmp_path / "base")
    settings = TUNED | {"base": str(base.folder), "text": text, "objective": "causal", "steps": 4}
    whole = regard.train(settings, out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        regard.train(settings, out=tmp_path / "cut", on_step=stop_at(2))
    resumed = resume(tmp_path / "cut", quiet=True)
    expected = load_file(whole.folder / "model.safetensors")
    weights = load_file(resumed.folder / "model.safetensors")
    assert all(expected[name].equal(weights[name]) for name in expected)


def test_a_run_of_minutes_ends_in_time_and_resumes_exactly(text: str, tmp_path: Path) -> None:
    named = ("steps", "warmup_steps", "validate_every", "save_every")
    settings = {key: value for key, value in QUICK.items() if key not in named}
    settings |= {"text": text, "model": "bert:tiny", **SIZES}
    begun = time.perf_counter()
    result = regard.train(settings, minutes=0.1, out=tmp_path / "run")
    assert time.perf_counter() - begun < 12  # six seconds, on a machine that may become busy
    recipe = json.loads(RunFolder(result.folder).recipe.read_text())
    steps = recipe["train"]["steps"]
    assert result.steps == steps > 20
    assert "unset" not in recipe
    # What was tried is undone: the run is that of so many steps.
    values = {key: recipe["train"][key] for key in (*named, "learning_rate")}
    same = regard.train(settings, **values, out=tmp_path / "same")
    weights = [load_file(one.folder / "model.safetensors") for one in (result, same)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    with pytest.raises(SettingError, match="before the first step"):
        regard.train(settings, minutes=0.0001, out=tmp_path / "short")
    assert not (tmp_path / "short").exists()
    with pytest.raises(SettingError, match="steps and minutes cannot be combined"):
        regard.train(settings, minutes=1, steps=5)


def test_minutes_choose_the_preset_that_nobody_named(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"a b {i}\tc d {i}\n" for i in range(60)))
    settings: dict[str, Any] = {"pairs": str(pairs), "minutes": 0.3, "vocabulary": 300, "beam": 1}
    settings |= {"max_length": 16, "batch_tokens": 64, "samples": 0, "threads": 1, "device": "cpu"}
    for expected in ("tiny", "small"):
        named = {} if expected == "tiny" else {"preset": expected}
        out = tmp_path / expected
        with pytest.raises(TrainingInterrupted):
            regard.train({**settings, **named}, out=out, on_step=lambda loop: loop.request_stop())
        assert json.loads(RunFolder(out).recipe.read_text())["model"]["preset"] == expected


def test_epochs_are_counted_for_new_models_too(text: str, tmp_path: Path) -> None:
    settings = {key: value for key, value in QUICK.items() if key not in ("steps", "warmup_steps")}
    result = regard.train(
        settings, text=text, model="bert:tiny", epochs=2, **SIZES, out=tmp_path / "run"
    )
    recipe = json.loads(RunFolder(result.folder).recipe.read_text())
    steps = recipe["train"]["steps"]
    assert recipe["train"]["warmup_steps"] == max(1, int(0.1 * steps))
    assert "unset" not in recipe
    lines = [
        json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert max(line["step"] for line in lines) == steps


# ------------------------------------------------------------------ folders


def _hold(folder: str, ready: Any, release: Any) -> None:
    with RunFolder(Path(folder)).locked():
        ready.set()
        release.wait(60)


def test_one_process_trains_in_a_folder(text: str, tmp_path: Path) -> None:
    """A second one is refused; a lock left by a killed one does not stop a resume."""
    recipe = loading.load(None, QUICK | SIZES | {"text": text, "model": "gpt2:tiny"})
    folder = begin(recipe, tmp_path / "run", "test").folder
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(folder), ready, release))
    other.start()
    assert ready.wait(60)
    with pytest.raises(SettingError, match="another process is training"):
        resume(folder, quiet=True)
    other.kill()
    other.join()
    assert resume(folder, quiet=True).folder == folder


@pytest.mark.slow
def test_the_command_trains_any_model(text: str, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "regard", "train", "--model", "llama:tiny", "--text", text,
        "--steps", "2", "--context", "32", "--vocabulary", "300", "--samples", "0",
        "--device", "cpu", "--out", str(tmp_path / "run"), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["validation"]["tokens"] > 0
    assert regard.load(tmp_path / "run").family == "llama"
