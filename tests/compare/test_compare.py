"""Comparisons: sizes that are equal, prices that are right, runs that are kept."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner

import regard
from regard import spec
from regard.builder import build
from regard.builder.parameter_count import parameter_count
from regard.cli.compare import command
from regard.data.generated import builtin
from regard.families import presets
from regard.families.encoder_decoders.recurrent import FAMILIES
from regard.lab.compare import experiment
from regard.lab.compare.contenders import TOLERANCE, Contender, parse_contenders
from regard.lab.compare.cost import activation_bytes
from regard.lab.compare.report import lines, scene
from regard.lab.measure.budget import Budget
from regard.lab.measure.instruments import count_flops, growth_exponent
from regard.look import drawing
from regard.system.errors import SettingError
from regard.training.model_spec import describe
from regard.training.objectives.losses import cross_entropy
from regard.training.recipe import loading, schema

pytestmark = pytest.mark.thorough

TINY: dict[str, Any] = {
    "preset": "tiny", "d_model": 36, "d_ff": 40, "heads": 2, "layers": 1, "batch_tokens": 256, "warmup_steps": 2,
    "tokenizer": "words", "vocabulary": 300, "beam": 1, "threads": 1, "max_length": 60,
}  # fmt: skip


def random_sentence(length: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """One random pair of sentences, [1, length] each, with its labels."""
    tokens = torch.randint(0, vocabulary, (3, 1, length))
    return dict(zip(("source", "target", "labels"), tokens.unbind(), strict=True))


def translation_flops(model: Any, length: int, vocabulary: int) -> float:
    batch = random_sentence(length, vocabulary)

    def step() -> None:
        hidden, _ = model(batch["source"], batch["target"])
        cross_entropy(model.head(hidden), batch["labels"])[0].backward()

    return count_flops(step)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> schema.Recipe:
    folder = tmp_path_factory.mktemp("text")
    pairs = list(itertools.islice(builtin.sentences("train"), 80))
    files = {}
    for side in ("source", "target"):
        for name, some in (("", pairs), ("valid_", pairs[:4]), ("test_", pairs[:20])):
            path = folder / f"{name}{side}"
            path.write_text("".join(getattr(pair, side) + "\n" for pair in some))
            files[name + side] = str(path)
    return loading.load(None, TINY | files)


@pytest.mark.parametrize("parameters", [None, 300_000, 3_000_000])
def test_all_models_get_as_many_parameters(parameters: int | None) -> None:
    recipe, _ = loading.choose("builtin", {"model": "transformer:tiny"})
    wanted = parameters or parameter_count(describe(recipe, 2000, 2000))
    words = [*FAMILIES, "transformer", "transformer:performer", "transformer:linformer:64+softmax"]
    for contender in parse_contenders(",".join(words)):
        sized = contender.sized(recipe, wanted, lambda r: describe(r, 2000, 2000))
        model = describe(sized, 2000, 2000)
        assert abs(parameter_count(model) / wanted - 1) < 0.03, contender.word
        if parameters is None and contender.word in ("transformer", "transformer:performer"):
            assert model.d_model == 128
    if parameters is None:
        same = Contender("transformer").sized(recipe, wanted, lambda r: describe(r, 2000, 2000))
        assert describe(same, 2000, 2000) == describe(recipe, 2000, 2000)


def test_words_and_budgets() -> None:
    assert Contender("gru@learning_rate=0.001@max_grad_norm=1").changes == {
        "model": "gru",
        "learning_rate": "0.001",
        "max_grad_norm": "1",
    }
    changes = Contender("transformer:linformer:8+window:4").changes
    assert changes == {
        "model": "transformer",
        "attention": "linformer:8",
        "decoder_attention": "window:4",
    }
    recipe, _ = loading.choose("builtin", {})
    assert Contender("gru@learning_rate=0.001").recipe(recipe).train.learning_rate == 0.001
    costs = (lambda: 300.0), (lambda: 0.25)  # FLOPs and seconds of a step
    assert Budget(steps=2000).in_steps(*costs) == 2000
    assert Budget(flops=1e6).in_steps(*costs) == 3333
    assert Budget(minutes=1).in_steps(*costs) == 240
    for amounts in ({}, {"steps": 0}, {"minutes": math.nan}, {"steps": 2, "flops": 1e6}):
        with pytest.raises(SettingError, match="budget"):
            Budget(**amounts)
    with pytest.raises(SettingError, match="too large"):
        Budget(flops=1e36).in_steps(*costs)
    for words, message in (("", "list of models is empty"), ("gru,gru", "twice")):
        with pytest.raises(SettingError, match=message):
            parse_contenders(words)
    for word, message in (
        ("gruu", "model"),
        ("gru:window:3", "not a setting of gru"),
        ("gru@speed=3", "not a setting"),
    ):
        with pytest.raises(SettingError, match=message):
            Contender(word).recipe(recipe)
    with pytest.raises(SettingError, match="cannot have about 1,000"):
        Contender("rnn").sized(recipe, 1000, lambda r: describe(r, 2000, 2000))
    with pytest.raises(SettingError, match="no causal form"):
        Contender("transformer:linformer:8").sized(
            recipe, 900_000, lambda r: describe(r, 2000, 2000)
        )


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_counted_multiplications_are_those_of_the_matrices(cell: Any) -> None:
    d, words, n = 16, 50, 24
    tokens = spec.Tokens(words, None)
    model = build(
        spec.SequenceToSequence(d, tokens, tokens, spec.Recurrent(cell), spec.Recurrent(cell))
    )
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[cell]
    bridge = (2 if cell == "lstm" else 1) * d * d
    forward = 2 * (2 * n * gates * 2 * d * d + bridge + n * words * d)
    assert abs(translation_flops(model, n, words) / (3 * forward) - 1) < 0.03


def test_costs_grow_as_they_should() -> None:
    def growth(word: str) -> float:
        recipe = Contender(word).recipe(loading.choose("builtin", {})[0], {"d_model": 16})
        model: Any = build(describe(recipe, 50, 50))
        sizes = [128, 256, 512]
        return growth_exponent(sizes, [translation_flops(model, n, 50) for n in sizes])

    assert growth_exponent([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)
    assert growth("rnn") == pytest.approx(1.0, abs=0.01)
    assert growth("transformer") > 1.5
    assert 1.1 < growth("transformer:performer") < 1.35  # cross-attention is still softmax


def test_what_backward_needs_is_counted_once() -> None:
    class Task:
        model = torch.nn.Linear(10, 10, bias=False)

        def loss(self, batch: Any) -> Any:
            y = self.model(batch["x"])
            return (y.exp() * y.exp()).sum(), None

    x = torch.randn(7, 10)
    assert activation_bytes(Task(), {"x": x}) == (x.numel() + 2 * 70) * 4  # type: ignore[arg-type]


def test_a_comparison_is_kept_and_goes_on(
    base: schema.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contenders = parse_contenders("transformer,bahdanau@max_grad_norm=1,rnn")
    trained: list[Path] = []
    plain = experiment.run  # type: ignore[attr-defined]

    def run(place: Any, *rest: Any, **more: Any) -> Any:
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(place.folder.relative_to(tmp_path))
        return plain(place, *rest, **more)

    monkeypatch.setattr(experiment, "run", run)
    arguments = (base, "test", contenders, Budget(steps=3), (1, 2), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        experiment.compare(*arguments)
    assert [str(path) for path in trained] == [
        "transformer/1",
        "transformer/2",
        "bahdanau_max_grad_norm_1/1",
    ]
    trained.clear()
    result = experiment.compare(*arguments)
    # The run that was interrupted had begun, and goes on as any other run does.
    assert [str(path) for path in trained] == ["rnn/1", "rnn/2"]
    trained.clear()
    assert experiment.compare(*arguments) == result
    assert not trained
    assert json.loads((tmp_path / "compare.json").read_text()) == json.loads(
        json.dumps(result.data())
    )
    for one in result.contestants:
        assert one.steps == 3
        assert [run.seed for run in one.runs] == [1, 2]
        assert one.runs[0].loss != one.runs[1].loss
        assert sum(bucket.sentences for bucket in one.runs[0].buckets) == 20
        lengths = [length for b in one.runs[0].buckets for length in (b.shortest, b.longest)]
        assert lengths == sorted(lengths)
        assert abs(one.parameters / result.parameters - 1) < 0.03
    table = "\n".join(lines(result))
    assert all(one.word in table for one in result.contestants)
    assert "±" in table
    drawn = ElementTree.fromstring(drawing.svg(scene(result), "test"))
    assert len(list(drawn.iter())) > 50
    with pytest.raises(SettingError, match="other settings"):
        experiment.compare(base, "test", contenders, Budget(steps=2), (1,), tmp_path)
    sides = ("source", "target", "test_source", "test_target")
    files = {side: getattr(base.data, side) for side in sides}
    other = loading.load(None, {**TINY, **files, "vocabulary": 200})
    with pytest.raises(SettingError, match="other data"):
        experiment.compare(other, "test", contenders, Budget(steps=3), (1,), tmp_path)


def test_the_command(base: schema.Recipe, tmp_path: Path) -> None:
    paths = {
        key: value
        for key, value in base.data.model_dump().items()
        if key.endswith(("source", "target"))
    }
    files = [f"--{key.replace('_', '-')}={value}" for key, value in paths.items()]
    sizes = [
        f"--{key.replace('_', '-')}={value}"
        for key, value in TINY.items()
        if key not in ("d_model", "d_ff")
    ]
    words = [
        "--models",
        "transformer,rnn",
        "--flops",
        "5e7",
        "--parameters",
        "20000",
        "--out",
        str(tmp_path / "c"),
    ]
    done = CliRunner().invoke(command, [*words, *files, *sizes, "--json"], catch_exceptions=False)
    result = json.loads(done.stdout.splitlines()[-1])
    spent = [one["steps"] * one["cost"]["flops"] for one in result["contestants"]]
    assert all(total <= 5e7 for total in spent)
    assert (tmp_path / "c" / "compare.svg").exists()
    words = ["--steps", "2", "--minutes", "1"]
    with pytest.raises(SettingError, match="exactly one positive budget"):
        CliRunner().invoke(command, words, catch_exceptions=False)
    with pytest.raises(SettingError, match="use steps=N"):
        regard.compare("transformer", "copying", budget="steps:2")


def test_from_python_with_data_of_ones_own(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the dog sees a cat in the house\n" * 60)
    lines: list[str] = []
    settings: dict[str, Any] = {"context": 16, "layers": 1, "heads": 2, "threads": 1}
    result = regard.compare(
        ["gpt2", "llama"],
        data=text,
        valid=str(text),
        steps=2,
        parameters=20_000,
        out=tmp_path / "out",
        say=lines.append,
        **settings,
    )
    assert [one.word for one in result.contestants] == ["gpt2", "llama"]
    assert all(one.steps == 2 for one in result.contestants)
    assert (tmp_path / "out" / "compare.svg").exists()
    assert any("compare.json" in line for line in lines)


def test_a_spec_file_is_compared_as_it_is(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the dog sees a cat in the house\n" * 60)
    mine = presets.preset("gpt2:tiny", 500, 32, layers=1, d_model=24, heads=2, d_ff=64)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(spec.to_dict(mine)))
    settings: dict[str, Any] = {"data": text, "valid": str(text), "context": 16, "threads": 1}
    settings |= {"steps": 2, "say": lambda line: None}
    models = [str(file), "gpt2:tiny@layers=1"]
    result = regard.compare(models, out=tmp_path / "out", **settings)
    own, other = result.contestants
    assert (own.d_model, own.parameters) == (24, result.parameters)
    assert abs(other.parameters / own.parameters - 1) < TOLERANCE
    with pytest.raises(SettingError, match=f"its spec has {own.parameters:,}"):
        regard.compare(models, parameters=10**6, out=tmp_path / "refused", **settings)
