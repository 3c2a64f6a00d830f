"""`regard tune`: a search over training runs, each of them resumable, and so the search too.

The folder of a search has `tune.json`, replaced as a whole after every change, a run folder for
each candidate in `trials/`, and at the end `best.toml`, a recipe.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from regard.lab.measure.budget import Budget
from regard.lab.plan.step_trace import trace_step
from regard.lab.plan.subject import Request, of_recipe
from regard.lab.tune.settings import Sizes, stages, warmup
from regard.lab.tune.successive_halving import Changes, Stage, longest_run, rungs, search
from regard.system import disk
from regard.system.errors import CheckpointError, DivergenceError, SettingError, TrainingInterrupted
from regard.training import preflight
from regard.training.engine.loop import Loop
from regard.training.engine.metrics_log import records
from regard.training.engine.progress import greater_is_better
from regard.training.model_card import toml_value
from regard.training.recipe.consistency import parse
from regard.training.recipe.schema import KEYS, Recipe
from regard.training.run import run
from regard.training.run_folder import RunFolder, begin, read_run

Say = Callable[[str], None]

STATE = "tune.json"
BEST = "best.toml"
PROBE_UPDATES = 20  # by which the time of an update is measured, after as many to warm up
MIN_UPDATES = 4  # of the longest run; with fewer there is nothing to compare


@dataclass
class Trial:
    """A candidate: what it changes, how far it was trained, and its scores by updates."""

    changes: dict[str, Any]
    scores: dict[str, float] = field(default_factory=dict)  # JSON has strings as keys

    @property
    def name(self) -> str:
        """The name of its folder: a digest of the changes."""
        # Sorted: the folder does not depend on the order in which settings were tuned.
        text = json.dumps(self.changes, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass
class State:
    """All that a search needs to go on."""

    name: str
    recipe: dict[str, Any]
    order: list[str]
    budget: dict[str, Any]
    updates: int = 0  # the budget in updates; 0 until it is known
    trials: list[Trial] = field(default_factory=list)
    best: dict[str, Any] | None = None

    def trial(self, changes: Changes) -> Trial:
        for trial in self.trials:
            if trial.changes == dict(changes):
                return trial
        trial = Trial(dict(changes))
        self.trials.append(trial)
        return trial


@dataclass(frozen=True)
class Tuned:
    """A finished search."""

    folder: Path
    best: dict[str, Any]
    score: float
    metric: str
    trials: tuple[Trial, ...]

    @property
    def recipe(self) -> Path:
        return self.folder / BEST

    def table(self) -> list[tuple[Trial, int, float]]:
        """Every trial with its last score, the longest trained and best first."""
        rows = []
        for trial in self.trials:
            updates = max(map(int, trial.scores), default=0)
            rows.append((trial, updates, trial.scores.get(str(updates), math.inf)))
        return sorted(rows, key=lambda row: (-row[1], row[2]))


# --- entry points ---------------------------------------------------------------------------------


def tune(
    recipe: Recipe, name: str, folder: Path, budget: Budget, order: Sequence[str], say: Say = print
) -> Tuned:
    """Starts a search in a new folder."""
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file, not a folder", "choose another --out")
    preflight.check(recipe)
    _take_again(folder)
    values = _absolute(recipe.model_dump(mode="json", exclude_unset=True))
    # Only what is set: the defaults of a later version stay its own.
    state = State(name, values, list(order), vars(budget))
    stages(recipe, order, Sizes(1, 1, 1))  # for its errors, before a folder is made
    return _Search(folder, state, say).run()


def _take_again(folder: Path) -> None:
    """Removes a search that ended before its first step; any other one is refused."""
    path = folder / STATE
    if not path.exists():
        return
    # Nobody else's file is removed.
    with suppress(CheckpointError):
        _read(path)
        if not any(folder.glob("trials/*/metrics.jsonl")):
            shutil.rmtree(folder / "trials", ignore_errors=True)
            path.unlink()
            return
    raise SettingError(
        f"{folder} already contains a search",
        f"resume it: regard tune --resume {quote(str(folder))}",
    )


def _read(path: Path) -> State:
    content = disk.read_json_object(path, CheckpointError)
    try:
        trials = [Trial(**trial) for trial in content.pop("trials")]
        return State(**content, trials=trials)
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", "start a new search") from None


def resume(folder: Path, say: Say = print) -> Tuned:
    """Resumes a search that was stopped."""
    path = folder / STATE
    if not path.is_file():
        raise CheckpointError(
            f"{folder} does not contain a search ({STATE})", "start one: regard tune RECIPE"
        )
    return _Search(folder, _read(path), say).run()


class _Search:
    """One search: its folder, its state, and the runs."""

    def __init__(self, folder: Path, state: State, say: Say) -> None:
        self.folder = folder
        self.state = state
        self.say = say
        self.recipe = parse(state.recipe)
        self.subject = of_recipe(self.recipe, state.name, Request())
        self.metric = self.recipe.train.metric
        self.validates = False  # until a run has shown it

    def run(self) -> Tuned:
        state = self.state
        if not state.updates:
            state.updates = self._updates()
        # How many candidates there are does not depend on the longest run, but warm-ups do.
        self.most = longest_run(self._stages(state.updates), state.updates)
        if self.most < MIN_UPDATES:
            raise SettingError(
                f"the budget is {state.updates:,} updates, too few for this search",
                "raise it, or tune fewer settings: --order rate",
            )
        self._save()  # not before: a budget that was refused must not stand in the way of another
        self.say(f"{state.updates:,} updates in total, {self.most:,} for the longest run")
        self.stages = self._stages(self.most)
        best = dict(search(self.stages, self.most, self._evaluate))
        state.best = best
        self._save()
        used = {"warmup_steps": warmup(self.recipe, self.most), **best}
        text = recipe_toml(_with_changes(state.recipe, used), state.name)
        disk.write_file(self.folder / BEST, text)
        score = min(state.trial(self._different(best)).scores.values(), default=math.inf)
        return Tuned(self.folder, best, score, self.metric, tuple(state.trials))

    def _stages(self, updates: int) -> list[Stage]:
        description = self.subject.description
        layers = max((stack.layers for stack in description.stacks.values()), default=1)
        sizes = Sizes(max(description.widths.values()), layers, updates)
        return stages(self.recipe, self.state.order, sizes)

    def _save(self) -> None:
        content = {**vars(self.state), "trials": [vars(trial) for trial in self.state.trials]}
        self.folder.mkdir(parents=True, exist_ok=True)
        disk.write_json(self.folder / STATE, content)

    # --- the budget -------------------------------------------------------------------------------

    def _updates(self) -> int:
        """The budget in updates. It is stored, so that a resumed search makes the same choices."""
        # Minutes once: what a busy machine does later changes no choice of the search.
        return Budget(**self.state.budget).in_steps(self._flops_of_update, self._seconds_of_update)

    def _flops_of_update(self) -> float:
        """Counted on a trace of an update."""
        return trace_step(self.subject).flops * self.subject.settings.accumulate

    def _seconds_of_update(self) -> float:
        """Measured on the recipe as it is, in a run that is not part of the search."""
        times: list[float] = []  # after each update

        def on_step(loop: Loop) -> None:
            times.append(time.perf_counter())

        values = _with_changes(self.state.recipe, {"steps": 2 * PROBE_UPDATES, "samples": 0})
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            run_folder = begin(parse(values), Path(folder) / "probe", self.state.name)
            run(run_folder, parse(values), "probe", score=False, quiet=True, on_step=on_step)
        return max(1e-6, (times[-1] - times[PROBE_UPDATES - 1]) / PROBE_UPDATES)

    # --- runs -------------------------------------------------------------------------------------

    def _evaluate(self, updates: int, changes: Changes) -> float:
        """The validation score of a candidate after so many updates; trains what is missing."""
        trial = self.state.trial(self._different(changes))
        # A resumed search asks for everything again, in the same order.
        if str(updates) not in trial.scores:
            score = trial.scores[str(updates)] = self._train(trial, updates)
            self._save()  # before the next run: a kill costs at most one of them
            words = "  ".join(f"{key} {value}" for key, value in changes.items())
            self.say(f"{words}  {updates:,} updates: {self.metric} {abs(score):.4f}")
        return trial.scores[str(updates)]

    def _different(self, changes: Changes) -> dict[str, Any]:
        """Without the values that the recipe has already: one setting is not trained twice."""
        return {
            key: value
            for key, value in changes.items()
            if self.state.recipe.get(KEYS[key], {}).get(key) != value
        }

    def _train(self, trial: Trial, updates: int) -> float:
        folder = self.folder / "trials" / trial.name
        stopped = False

        def on_step(loop: Loop) -> None:
            nonlocal stopped
            # Few examples have none held out: seen after the first update, not after the last.
            if not self.validates and loop.strategy.evaluation.validate() is None:
                raise _NoValidation
            self.validates = True
            # The run ends here, with its state saved.
            if loop.progress.step >= updates and not loop.interrupted:
                stopped = True
                loop.request_stop()

        try:
            # A run of an earlier rung, or of a search that was killed, goes on bit for bit.
            if RunFolder(folder).recipe.is_file():
                begun = read_run(folder)
            else:
                recipe = self._trial_recipe(trial)
                begun = (begin(recipe, folder, self.state.name), recipe, self.state.name)
            run(*begun, score=False, quiet=True, on_step=on_step)
        except TrainingInterrupted:
            # Ctrl-C ends the search too.
            if not stopped:
                raise
        except _NoValidation:
            # Nothing in it is of value, and it would stand in the way of the corrected command.
            shutil.rmtree(folder)
            raise SettingError(
                "tuning needs a validation set",
                "add validation data (valid_… in `regard tune --help`), or more training data",
            ) from None
        except DivergenceError:
            return math.inf  # the worst score: a rate that is too high is a result, too
        return self._score(folder, updates)

    def _trial_recipe(self, trial: Trial) -> Recipe:
        """The recipe of a candidate: its learning-rate schedule ends with the longest run."""
        shortest = min(rungs(len(stage.values), self.most)[0][1] for stage in self.stages)
        changes = {
            "warmup_steps": warmup(self.recipe, self.most),
            **trial.changes,
            "steps": self.most,
            "validate_every": shortest,
            "save_every": shortest,
            "log_every": max(1, shortest // 4),
            "patience": 0,  # a rung ends when it ends
            "samples": 0,
            "final_weights": "last",  # snapshots of the best would only take space
        }
        return parse(_with_changes(self.state.recipe, changes))

    def _score(self, folder: Path, updates: int) -> float:
        """The metric of the validation at this update; negative where more is better."""
        # The search minimizes.
        sign = -1.0 if greater_is_better(self.metric) else 1.0
        score = next(
            sign * float(record[self.metric])
            for record in records(folder / "metrics.jsonl")
            if record.get("event") == "validation" and record["step"] == updates
        )
        return score if math.isfinite(score) else math.inf


class _NoValidation(Exception):
    """A run that is validated on nothing."""


def recipe_toml(values: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """The text of a recipe, which `regard train` takes: its sections with what is set."""
    lines = [f"# {name}, tuned by `regard tune`."]
    for section, entries in values.items():
        # None is no value of TOML: such keys keep their defaults.
        settings = {key: value for key, value in entries.items() if value is not None}
        if settings:
            lines += ["", f"[{section}]"]
            lines += [f"{key} = {toml_value(value)}" for key, value in settings.items()]
    return "\n".join(lines) + "\n"


def _absolute(values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Absolute names of the files: a search is resumed, and its recipe used, from anywhere."""
    for entries in values.values():
        for key, value in entries.items():
            if isinstance(value, str) and Path(value).exists():
                entries[key] = str(Path(value).absolute())
    return values


def _with_changes(
    values: Mapping[str, Mapping[str, Any]], changes: Changes
) -> dict[str, dict[str, Any]]:
    """A recipe's values with settings changed, each in its section."""
    result = {section: dict(entries) for section, entries in values.items()}
    if "steps" in changes:
        changes = {**changes, "epochs": None, "minutes": None}  # these would count them anew
    for key, value in changes.items():
        result.setdefault(KEYS[key], {})[key] = value
    return result
