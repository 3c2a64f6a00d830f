"""regard compare: the same data, as many parameters, the same budget; models and seeds.

Every run is an ordinary run folder, trained by `training.run`. A finished one is kept with its
result, so that an interrupted comparison goes on where it was.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.evaluation.evaluation import paired_tests
from regard.evaluation.metrics.significance import PairedTest
from regard.evaluation.scores import Score
from regard.lab.compare.contenders import Contender
from regard.lab.compare.cost import Cost, step_cost
from regard.lab.compare.quality_by_length import evaluate_by_length
from regard.lab.compare.report import Comparison
from regard.lab.compare.results import ContenderResult, Run, Scores
from regard.lab.measure.budget import Budget
from regard.models import Translator, load
from regard.system import disk
from regard.system.errors import SettingError
from regard.training import preflight
from regard.training.assembly import assemble
from regard.training.data.parallel_text import Pair, test_sets
from regard.training.data.plain_text import TextCorpora
from regard.training.engine.metrics_log import records
from regard.training.objectives.objective import Objective
from regard.training.recipe.objectives import DATA_KEYS
from regard.training.recipe.schema import Recipe
from regard.training.run import resume, run
from regard.training.run_evaluation import evaluate
from regard.training.run_folder import RunFolder, begin, read_run
from regard.training.setup import Setup, objective_class

Say = Callable[[str], None]


@dataclass(frozen=True)
class SharedData:
    """The data of all runs, prepared once in a folder of its own."""

    run_folder: RunFolder
    objective: type[Objective]
    prepared: Any  # what the source gives
    characters: int | None  # of the validation text of language models

    @property
    def folder(self) -> Path:
        return self.run_folder.folder

    def describe(self, recipe: Recipe) -> spec.Model:
        """The spec of a recipe's model for this data."""
        return self.objective.describe(Setup(self.run_folder, recipe, _silent), self.prepared)


def _silent(text: str) -> None:
    pass


# --- the experiment -------------------------------------------------------------------------------


FEWEST_TOKENS = 8  # of a vocabulary, or classes; special tokens are among them


def compare(
    base: Recipe,
    name: str,
    contenders: Sequence[Contender],
    budget: Budget,
    seeds: Sequence[int],
    out: Path,
    *,
    parameters: int | None = None,
    say: Say = _silent,
) -> Comparison:
    """Trains every contender with every seed, and scores it as a run of its objective is scored.

    All models have about as many `parameters`: by default those of the first spec among them, or of
    the recipe's own model.
    """
    _check_before_data(base, contenders, parameters)
    data = _shared_data(out / "data", base, name, say)
    if parameters is None:
        fixed = [contender.recipe(base) for contender in contenders if contender.is_spec]
        parameters = parameter_count(data.describe([*fixed, base][0]))
    # All are sized before the first is trained, so that one that cannot be is refused at once.
    recipes = [contender.sized(base, parameters, data.describe) for contender in contenders]
    results = []
    for contender, recipe in zip(contenders, recipes, strict=True):
        description = data.describe(recipe)
        folder = out / contender.folder
        cost = _measured_cost(folder, data.folder, recipe, description)
        steps = max(1, budget.in_steps(partial(float, cost.flops), partial(float, cost.seconds)))
        count = parameter_count(description)
        d_model = max(description.widths.values())
        say(f"{contender.word}: {count:,} parameters, d_model {d_model}, {steps:,} steps")
        # Where nobody has chosen a warm-up, the rate is the paper's, as in `regard train`.
        has_warmup = "warmup_steps" in base.train.model_fields_set | contender.changes.keys()
        runs = []
        for seed in seeds:
            # The data are the same for all seeds; weights, order and dropout differ.
            seeded = _with_steps(recipe, steps, seed, None if has_warmup else d_model)
            one = _train(folder / str(seed), data, seeded, name, say)
            say(f"{contender.word}, seed {seed}: loss {one.loss:.3f}")
            runs.append(one)
        results.append(ContenderResult(contender.word, count, d_model, steps, cost, runs))
    folders = [out / contender.folder / str(seeds[0]) for contender in contenders]
    tests = _paired_tests(folders, data.run_folder.data / "test.jsonl")
    comparison = Comparison(name, parameters, budget, results, data.objective.unit, tests)
    _say_what_is_replaced(out / "compare.json", contenders, say)
    disk.write_json(out / "compare.json", comparison.data())
    return comparison


def _say_what_is_replaced(file: Path, contenders: Sequence[Contender], say: Say) -> None:
    """The table of other models in the same folder is replaced; their runs are kept."""
    with suppress(SettingError, LookupError, TypeError):  # nobody's table
        earlier = [model["word"] for model in disk.read_json(file, SettingError)["contestants"]]
        missing = ", ".join(word for word in earlier if Contender(word) not in contenders)
        if missing:
            say(f"{file} is replaced, without {missing}: add them to --models to keep them")


def _check_before_data(
    base: Recipe, contenders: Sequence[Contender], parameters: int | None
) -> None:
    """Checks that need no data; they run before a folder is created."""
    if base.objective_settings.data == "pairs" and not _has_test_pairs(base):
        raise _no_test_set(base)
    for contender in contenders:
        preflight.check(contender.recipe(base))
        if parameters is not None:
            contender.require_possible(base, parameters, _smallest_spec)
    if parameters is not None:
        preflight.require_memory(parameters, base)


def _has_test_pairs(recipe: Recipe) -> bool:
    """Whether translators can be scored: generated pairs are, files only where they are named."""
    data = recipe.data
    return bool(
        recipe.builtin
        or recipe.generated_task
        or data.test_pairs
        or (data.test_source and data.test_target)
    )


def _no_test_set(recipe: Recipe) -> SettingError:
    # The settings that name held-out data of the kind that the recipe learns from.
    kind = recipe.objective_settings.data
    if kind == "pairs":
        files = "--test-source and --test-target, or --test-pairs"
    elif kind in ("series", "graph"):
        files = f"a longer {kind}, whose splits are not empty"
    else:
        files = f"--valid-{DATA_KEYS[kind]}"
    return SettingError("a comparison needs a test or validation set", f"add one: {files}")


def _smallest_spec(recipe: Recipe) -> spec.Model:
    """The spec of a recipe's model with the fewest tokens that data can have."""
    return preflight.nominal_spec(recipe, FEWEST_TOKENS)


def _paired_tests(folders: Sequence[Path], examples: Path) -> dict[str, PairedTest]:
    """A paired significance test of two models, where there are two and a test set."""
    if len(folders) != 2 or not examples.is_file():
        return {}
    return paired_tests(*(evaluate(folder, examples) for folder in folders))


def _shared_data(folder: Path, base: Recipe, name: str, say: Say) -> SharedData:
    """The data of all runs, prepared once; a folder that was begun with other data is refused."""
    run_folder = RunFolder(folder)
    begun = None
    if run_folder.recipe.is_file():
        _, recipe, _ = read_run(folder)
        begun = (recipe.data, recipe.tokens)
    if begun != (base.data, base.tokens):
        if _has_trained(folder.parent):
            raise SettingError(
                f"{folder.parent} contains a comparison on other data", "choose another --out"
            )
        # Also in place of what a mistaken command prepared, before anything was trained on it.
        run_folder = begin(base, folder, name)
    objective = objective_class(base.objective)
    prepared = objective.source_class.prepare(Setup(run_folder, base, say), None)
    return SharedData(run_folder, objective, prepared, _characters(base, prepared))


def _has_trained(out: Path) -> bool:
    """Whether a comparison has measured or trained one of its models."""
    return any(out.glob("*/cost.json")) or any(out.glob("*/*/metrics.jsonl"))


def _characters(recipe: Recipe, prepared: Any) -> int | None:
    """Characters of the validation text that a language model predicts."""
    if recipe.objective != "causal" or not isinstance(prepared, TextCorpora):
        return None
    column = prepared.valid.columns["text"]
    # The first token is given, not predicted.
    return len(prepared.tokenizer.decode(column.tokens[1:].tolist()))


def _new_run_folder(folder: Path, data: Path, recipe: Recipe, name: str) -> RunFolder:
    """A run folder with the shared data, as hard links to the same files."""
    run_folder = begin(recipe, folder, name)
    shutil.copytree(data / "state" / "data", run_folder.data, copy_function=os.link)
    for tokenizer in data.glob("*tokenizer.json"):
        shutil.copy(tokenizer, run_folder.folder / tokenizer.name)
    return run_folder


def _with_steps(recipe: Recipe, steps: int, seed: int, peak_width: int | None) -> Recipe:
    """The recipe with as many steps as the budget allows.

    Where these are fewer than the recipe's, the warm-up is shorter in proportion. Equation 3 has a
    higher peak then; with a `peak_width` it stays that of the longer warm-up for this d_model.
    """
    train = recipe.train
    warmup = round(train.warmup_steps * min(1.0, steps / train.steps))
    changes: dict[str, Any] = {
        "steps": steps,
        "seed": seed,
        "warmup_steps": max(1, warmup),
        "validate_every": max(1, min(train.validate_every, steps // 5)),
        "save_every": max(1, min(train.save_every, steps)),
        "samples": 0,  # sample translations that training prints
    }
    if train.schedule == "paper" and train.learning_rate is None and peak_width is not None:
        changes["learning_rate"] = (peak_width * train.warmup_steps) ** -0.5
    # These would count the steps anew.
    tune = recipe.tune.model_copy(update={"epochs": None, "minutes": None})
    return recipe.model_copy(update={"train": train.model_copy(update=changes), "tune": tune})


def _measured_cost(folder: Path, data: Path, recipe: Recipe, description: spec.Model) -> Cost:
    """The cost of a step, measured in a folder that is thrown away.

    It is kept, because a resumed comparison must train for as many steps as before.
    """
    file = folder / "cost.json"
    settings = {"model": recipe.model.model_dump(), "batch_tokens": recipe.train.batch_tokens}
    if recipe.model.spec is not None:
        settings["spec"] = spec.to_dict(description)  # the file may have changed
    if file.exists():
        saved = json.loads(file.read_text(encoding="utf-8"))
        if saved["of"] != settings:
            raise SettingError(f"{folder} was started with another model", "choose another --out")
        return Cost(**saved["cost"])
    trial = folder / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    # Its validation only shows that there is one: the loss is enough, nothing is decoded.
    changes = {"metric": "loss", "samples": 0}
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})
    run_folder = _new_run_folder(trial, data, recipe, "trial")
    try:
        objective = assemble(Setup(run_folder, recipe, _silent))
        # Few examples have none held out, which is known only now; but nothing is trained yet.
        if objective.validate() is None:
            raise _no_test_set(recipe)
        cost = step_cost(objective, _longest(recipe), recipe.train.accumulate)
    finally:
        shutil.rmtree(trial)
    # "of" are the settings that the cost depends on: a folder with others is refused.
    disk.write_json(file, {"of": settings, "cost": asdict(cost)})
    return cost


def _longest(recipe: Recipe) -> int | None:
    """The greatest length of a text; None for data of a fixed size or without sequences."""
    lengths = {
        "pairs": recipe.data.max_length,
        "text": recipe.data.context,
        "examples": recipe.data.context,
    }
    return lengths.get(recipe.objective_settings.data)


# --- one run --------------------------------------------------------------------------------------


def _train(folder: Path, data: SharedData, recipe: Recipe, name: str, say: Say) -> Run:
    """Trains a model, or goes on with it, or reads the result of its finished run."""
    file = folder / "study.json"
    if RunFolder(folder).recipe.is_file():
        _, begun_with, _ = read_run(folder)
        if begun_with != recipe:
            raise SettingError(f"{folder} was started with other settings", "choose another --out")
        if file.exists():
            return Run.read(file)
        say(f"{folder}: resuming")
        result = resume(folder, quiet=True)
    else:
        # A folder without a recipe was left before it could be resumed.
        shutil.rmtree(folder, ignore_errors=True)
        result = run(_new_run_folder(folder, data.folder, recipe, name), recipe, name, quiet=True)
    if not result.scores:
        raise _no_test_set(recipe)
    # Records of validations, and of training between them.
    metrics = list(records(folder / "metrics.jsonl"))
    losses = [[m["step"], m["loss"]] for m in metrics if m.get("event") == "validation"]
    rates = [m["tokens_per_second"] for m in metrics if "tokens_per_second" in m]
    finished = Run(
        seed=recipe.train.seed,
        loss=min(loss for _, loss in losses),  # the best validation
        train_rate=statistics.median(rates),
        seconds=result.seconds,
        losses=losses,
        scores=_scores(result.scores, data.characters),
        **_translation_results(folder, recipe, result.scores),
    )
    disk.write_json(file, asdict(finished))
    return finished


def _scores(scores: Mapping[str, Score], characters: int | None) -> Scores:
    """The scores of a run as numbers, and bits per character where the text has some."""
    numbers: Scores = {}
    for split, score in scores.items():
        values = vars(score)
        numbers[split] = {key: one for key, one in values.items() if isinstance(one, float)}
        if characters and "tokens" in values:
            nats = values["loss"] * values["tokens"] / characters
            numbers[split]["bits_per_character"] = nats / math.log(2)
    return numbers


def _translation_results(
    folder: Path, recipe: Recipe, scores: Mapping[str, Score]
) -> dict[str, Any]:
    """The quality of translations, by length too, and the speed of decoding."""
    if recipe.objective != "translate":
        return {}
    translator = load(folder, Translator, device=recipe.train.device, say=_silent)
    sets = test_sets(RunFolder(folder))
    pairs: Sequence[Pair] = sets.get("test", next(iter(sets.values())))
    if recipe.generated_task is not None:
        # What is longer than in training comes last.
        pairs = [*pairs, *sets["longer"]]
    first = vars(scores.get("test", next(iter(scores.values()))))
    buckets, decode_rate = evaluate_by_length(translator, pairs, recipe)
    quality: dict[str, Any] = {key: first[key] for key in ("bleu", "exact_match") if key in first}
    return {**quality, "decode_rate": decode_rate, "buckets": buckets}
