"""The public names of the package: what is listed, how a model is shown, what its types accept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import looked
import regard
from regard import models
from regard.models import Model
from regard.system.errors import ModelError, SettingError

ROOT = Path(__file__).parents[2]
SENTENCE = "The dog sees a cat."


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


# ------------------------------------------------------------------ names


def test_public_names_are_listed_without_importing_torch() -> None:
    code = (
        "import sys, regard\n"
        "print(sorted(regard.__all__) == sorted(set(dir(regard)) - {'__version__'}))\n"
        "print('torch' in sys.modules)\n"
    )
    assert run_python(code).split() == ["True", "False"]


def test_every_public_name_can_be_imported() -> None:
    for name in regard.__all__:
        assert getattr(regard, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        regard.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_build_is_a_function_and_spec_a_module_whatever_was_imported_before() -> None:
    code = (
        "import regard\n"
        "print(callable(regard.build), regard.spec.Tokens.__name__)\n"
        "import regard.models, regard.training.run\n"
        "print(callable(regard.build), regard.spec.Tokens.__name__)\n"
    )
    assert run_python(code).split() == ["True", "Tokens"] * 2


def test_every_class_that_load_returns_is_a_public_name() -> None:
    kinds = {cls for cls in vars(models).values() if isinstance(cls, type)}
    loaded = {cls.__name__ for cls in kinds if issubclass(cls, Model)}
    assert loaded <= set(regard.__all__)


def test_a_preset_is_a_spec_and_plan_says_what_training_it_costs() -> None:
    description = regard.preset("gpt2:tiny", heads=2)
    assert isinstance(regard.build(description), torch.nn.Module)
    plan = regard.plan("gpt2:tiny", device="A100", batch=2, length=16)
    assert plan.needed > plan.trace.memory.weights > 0
    assert plan.subject.sizes.rows == 2


# ------------------------------------------------------------------ a model


def test_load_opens_a_model_of_the_class_that_is_asked_for(tmp_path: Path) -> None:
    folder = looked.translator().save(tmp_path / "model")
    assert isinstance(regard.load(folder, regard.Translator), regard.Translator)
    with pytest.raises(ModelError, match=r"contains a Translator.*not a LanguageModel"):
        regard.load(folder, regard.LanguageModel)


def test_predict_takes_a_model_or_its_folder_and_one_text_or_several(tmp_path: Path) -> None:
    model = looked.translator()
    folder = model.save(tmp_path / "model")
    several = regard.predict(folder, [SENTENCE, "A cat sleeps."])
    assert [one.task for one in several] == ["translate"] * 2
    assert regard.predict(model, SENTENCE) == several[:1]


def test_a_model_has_its_tokenizer() -> None:
    model = looked.translator()
    assert model.tokenizer is model.source_tokenizer
    bare = Model(model.model, model.spec)
    with pytest.raises(SettingError, match="no tokenizer"):
        bare.tokenizer  # noqa: B018


def test_a_model_shows_its_family_size_dtype_and_device() -> None:
    model = looked.translator()
    count = sum(parameter.numel() for parameter in model.model.parameters())
    assert (
        repr(model) == f"Translator(EncoderDecoder, {count / 1000:.1f}K parameters, float32, cpu)"
    )


def test_a_packed_model_shows_the_same_size() -> None:
    model = looked.translator()
    before = model.parameter_count
    assert f"{before / 1000:.1f}K" in repr(model.prepare_for_inference())


def test_a_loaded_model_has_the_dtype_asked_for(tmp_path: Path) -> None:
    looked.translator().save(tmp_path / "model")
    plain = regard.load(tmp_path / "model", device="cpu")
    assert plain.dtype == torch.float32
    assert plain.family == "marian"
    half = regard.load(tmp_path / "model", device="cpu", dtype="bfloat16")
    assert half.dtype == torch.bfloat16
    assert "bfloat16" in repr(half)
    assert isinstance(half.translate(SENTENCE), str)
    half.save(tmp_path / "half")
    # On a CPU the default is float32, whatever is stored.
    assert regard.load(tmp_path / "half", device="cpu").dtype == torch.float32
    same = regard.load(tmp_path / "half", device="cpu", dtype=torch.float16)
    assert same.dtype == torch.float16


def test_an_unknown_dtype_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="unknown dtype 'float23'") as caught:
        regard.load(tmp_path, dtype="float23")
    assert "float32" in caught.value.repair


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_half_precision_stays_as_it_is_stored(tmp_path: Path) -> None:
    looked.translator().save(tmp_path / "model")
    assert regard.load(tmp_path / "model", device="cuda").dtype == torch.float32
    regard.load(tmp_path / "model", device="cpu", dtype="bfloat16").save(tmp_path / "half")
    half = regard.load(tmp_path / "half", device="cuda")
    assert half.dtype == torch.bfloat16
    assert isinstance(half.translate(SENTENCE), str)
    cast = regard.load(tmp_path / "model", device="cuda").prepare_for_inference("bf16")
    assert cast.dtype == torch.bfloat16
    assert isinstance(cast.translate(SENTENCE), str)
    with pytest.raises(SettingError, match="int8"):
        regard.load(tmp_path / "model", device="cuda").prepare_for_inference("int8")


def test_a_task_that_a_model_lacks_is_an_error_that_names_those_it_has() -> None:
    model = looked.translator()
    assert model.tasks == ["translate", "perplexity"]
    with pytest.raises(ModelError, match="cannot `generate`") as caught:
        model.generate("Once upon a time")
    assert "it can: translate, perplexity; load a language model" in caught.value.repair
    bare = Model(model.model, model.spec)
    for task in ("translate", "embed", "classify", "transcribe", "answer"):
        with pytest.raises(ModelError, match=f"cannot `{task}`"):
            getattr(bare, task)(SENTENCE)


def test_arguments_may_come_in_any_order() -> None:
    model = looked.translator()
    source = torch.tensor([[3, 4, 5]])
    target = torch.tensor([[1, 4]])
    expected = model(source, None, target).logits
    swapped = model(decoder_input_ids=target, input_ids=source).logits
    assert torch.equal(swapped, expected)


# ------------------------------------------------------------------ types


def test_a_type_checker_accepts_the_readme_and_refuses_nonsense(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    good = tmp_path / "good.py"
    good.write_text(
        "import regard\n\n"
        'model = regard.load("runs/mine")\n'
        'text: str = model.translate("The dog sees a cat.")\n'
        'texts: list[str] = model.translate(["The dog sees a cat."])\n'
        'print(model.generate("ROMEO:", max_new_tokens=5), model.classify("fine"))\n'
        "module = regard.build(regard.spec.from_dict({}))\n"
    )
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import regard\n\n"
        'regard.load("runs/mine").nonsense()\n'
        'number: int = regard.load("runs/mine").translate("The dog sees a cat.")\n'
        "regard.nonsense\n"
    )
    # The options of the project, and so its cache: ./test has filled it.
    options = ["--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(good), str(bad)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    # Of the scripts alone: the package itself is checked elsewhere.
    # By name: mypy repeats the errors of an unchanged file from its cache, old path included.
    scripts = (good.name, bad.name)
    lines = [line for line in done.stdout.splitlines() if Path(line.split(":")[0]).name in scripts]
    places = [(Path(line.split(":")[0]).name, line.split(":")[1]) for line in lines]
    assert places == [("bad.py", n) for n in ("3", "4", "5")], done.stdout + done.stderr
    assert 'has no attribute "nonsense"' in lines[0]
