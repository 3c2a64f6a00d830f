"""Training runs: `regard.train` and `regard.finetune`, from a recipe to a finished run folder."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TypedDict, Unpack

import torch

from regard import spec as specs
from regard.builder import edit
from regard.evaluation.scores import Score
from regard.system import disk, memory
from regard.system.errors import (
    DiskError,
    RegardError,
    RegardWarning,
    SettingError,
    TrainingInterrupted,
)
from regard.system.memory import keep_large_blocks
from regard.training import (
    learning_curves,
    model_card,
    model_spec,
    preflight,
)
from regard.training.assembly import assemble_on_ranks, exported_files
from regard.training.engine.loop import Loop
from regard.training.engine.metrics_log import last_losses
from regard.training.engine.progress_bar import ProgressBar
from regard.training.objectives.objective import Objective
from regard.training.parallel.ranks import ONE_RANK, Ranks, joined, may_be_restarted, was_restarted
from regard.training.parallel.strategy import DataParallel, Strategy, assign, on_all_ranks
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder, begin, read_run
from regard.training.setup import NO_PARTS, DataSource, Parts, Setup, check_types

OnStep = Callable[[Loop], None]


class Options(TypedDict, total=False):
    """How a run is watched, what it has from outside the package, and the ranks it is on."""

    quiet: bool
    on_step: OnStep | None
    parts: Parts
    ranks: Ranks


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, its score on each test set, and what it took."""

    folder: Path
    scores: dict[str, Score]
    seconds: float  # of training
    compiling: float  # of these, spent on compiling
    parameters: int
    # Split → metric → score, of the metrics that were asked for.
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    steps: int = 0
    # The last loss, and the scores of the last validation: `loss`, `validation_loss` and so on.
    losses: dict[str, float] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """The learning curves and scores, for a notebook."""
        values = {split: vars(score) for split, score in self.scores.items()}
        return learning_curves.to_html(self.folder, repr(str(self.folder)), values)


# --- one run in its folder ------------------------------------------------------------------------


@dataclass
class RunSession:
    """One rank's part in a run. The main rank alone writes, and shows progress."""

    run_folder: RunFolder
    recipe: Recipe
    name: str
    quiet: bool = False
    on_step: OnStep | None = None
    parts: Parts = NO_PARTS
    ranks: Ranks = ONE_RANK
    parameters: int = 0  # of the whole model, counted before it is sharded
    scores: dict[str, Score] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_quiet = self.quiet or not self.ranks.is_main
        self.progress_bar = ProgressBar(self.recipe.train.steps, is_quiet)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Locks the folder, and writes how the run ended.

        The folder of a new run that could not be assembled is removed.
        """
        with ExitStack() as stack:
            self.ranks.on_main(lambda: stack.enter_context(self.run_folder.locked()))
            is_main = self.ranks.is_main
            if is_main:
                self.run_folder.outcome.unlink(missing_ok=True)
            try:
                yield
            except RegardError as error:
                if is_main and not isinstance(error, TrainingInterrupted):
                    self._fail(error)
                raise
            # state/outcome.json is no part of the metrics, which are continued to the byte.
            if is_main:
                outcome = {"status": "finished", "scores": _numbers(self.scores)}
                disk.write_json(self.run_folder.outcome, disk.json_value(outcome))

    def _fail(self, error: RegardError) -> None:
        failure = {"status": "failed", "problem": error.problem, "repair": error.repair}
        # On a full disk there is no room for the reason, either.
        with suppress(DiskError):
            disk.write_json(self.run_folder.outcome, failure)
        # Standard input cannot be read again: its copy is kept, if there was any.
        from_stdin = "-" in (self.recipe.data.text, self.recipe.data.pairs)
        files = self.run_folder.data.glob("*.*")
        has_copy = from_stdin and any(file.stat().st_size for file in files)
        if self.run_folder.is_new and not self.run_folder.metrics.exists() and not has_copy:
            self.run_folder.remove()

    def assemble(self) -> Objective:
        """Model, data and objective; from here on the recipe is the final one."""
        self.run_folder.check_objective(self.parts.objective_name)
        keep_large_blocks()  # of memory, for the batches to come
        train = self.recipe.train
        if train.threads:
            memory.require_threads(train.threads)
            torch.set_num_threads(train.threads)
        # TF32 is a switch of PyTorch, not a dtype: products of float32 matrices with 10-bit
        # mantissas.
        torch.backends.cuda.matmul.allow_tf32 = train.precision == "tf32"
        say = self.progress_bar.say
        setup = Setup(self.run_folder, self.recipe, say, self.parts, self.ranks)
        if setup.device.index is not None:  # "cuda" alone is the current one
            torch.cuda.set_device(setup.device)
        objective = assemble_on_ranks(setup)
        self.recipe = objective.setup.recipe
        self.progress_bar.set_steps(self.recipe.train.steps)
        # ELECTRA trains two models at once: the objective holds all that has gradients.
        self.parameters = sum(parameter.numel() for parameter in objective.model.parameters())
        on_ranks = ""
        if self.ranks.several:
            on_ranks = f", {self.ranks.size} ranks ({self.recipe.parallel.strategy})"
        say(
            f"model: {self.parameters:,} parameters, {train.precision} "
            f"on {setup.device}{on_ranks}; run folder: {self.run_folder.folder}"
        )
        preflight.say_all(self.recipe, setup.device, self.ranks, say)
        return objective

    def restore(self, loop: Loop, longer: bool) -> None:
        """Takes the loop to the newest checkpoint, if there is one."""
        say = self.progress_bar.say
        if self.ranks.is_main:
            self.run_folder.delete_unfinished()
        saved = on_all_ranks(loop.checkpoints, self.ranks, say)
        if saved is None:
            loop.metrics.truncate(0)  # of a run that ended before its first checkpoint
            return
        loop.restore(saved)
        if longer:  # early stopping may have ended it
            loop.progress.finished = False
            loop.progress.stale = 0
        finished = "; the run is finished" if loop.at_end else ""
        say(f"resuming at step {saved.step}{finished}")

    def train(self, loop: Loop) -> None:
        """To the last step; raises `TrainingInterrupted` once a stopped run is saved."""
        with closing(loop.metrics):
            loop.run()
        if not loop.interrupted:
            return
        step = loop.progress.step
        repair = f"resume with: regard train --resume {quote(str(self.run_folder.folder))}"
        self.progress_bar.say(f"saved at step {step}; {repair}")
        stopped_by = signal.Signals(loop.stop_signal).name
        raise TrainingInterrupted(
            f"{stopped_by} stopped the run; it is saved at step {step}", repair, loop.stop_signal
        )

    def score(self, loop: Loop) -> None:
        """Scores the weights in the folder: averaged, or the best, not the last."""
        scores: dict[str, Score] = {}
        with loop.exported(), warnings.catch_warnings():
            # Unknown words of the data were counted when it was prepared.
            warnings.simplefilter("ignore", RegardWarning)
            if self.ranks.is_main:
                scores = loop.strategy.evaluation.scores()
        self.scores = self.ranks.broadcast(scores)

    def hand_back(self, loop: Loop) -> None:
        """Leaves the exported weights in a model that was given, which can be used again."""
        trained = loop.objective.trained_model
        if trained is not self.parts.model:
            return  # a new head made another model of it
        if not self.ranks.several:
            assign(loop.averaging.parameters, loop.averaging.selected(loop.progress))
        with torch.no_grad():
            edit.merge(trained.model)  # LoRA
        trained.model.requires_grad_(True).eval()

    def result(self, loop: Loop) -> Result:
        """What the run took and came to; the main rank writes the model card."""
        progress = loop.progress
        if self.ranks.is_main:
            facts = model_card.Facts(self.parameters, progress.step, progress.seconds, self.scores)
            model_card.write(self.run_folder, self.recipe, self.name, facts)
        return Result(
            self.run_folder.folder,
            self.scores,
            progress.seconds,
            progress.compiling,
            self.parameters,
            steps=progress.step,
            losses=last_losses(self.run_folder.metrics),
        )


def _numbers(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """Split → name → number, of the scores of a run."""
    return {
        split: {key: value for key, value in vars(score).items() if isinstance(value, int | float)}
        for split, score in scores.items()
    }


def make_strategy(objective: Objective) -> Strategy:
    """How the ranks of a run share its work; in one process, not at all."""
    ranks = objective.setup.ranks
    if not ranks.several:
        return Strategy(objective)
    if ranks.data_size > 1 and objective.indivisible is not None:
        # A loss that is no sum over rows, and that ranks cannot put together.
        raise SettingError(
            f"several ranks cannot share a batch here: {objective.indivisible}",
            "train in one process",
        )
    # Imported late: what a run does not use need not be there in its version of PyTorch.
    match objective.setup.recipe.parallel.strategy:
        case "fsdp":
            from regard.training.parallel.fully_sharded import FullySharded

            return FullySharded(objective, ranks)
        case "tensor":
            from regard.training.parallel.tensor_parallel import TensorParallel

            return TensorParallel(objective, ranks)
        case _:
            return DataParallel(objective, ranks)


# --- new runs, and runs that go on ----------------------------------------------------------------


def run(
    run_folder: RunFolder,
    recipe: Recipe,
    name: str,
    *,
    longer: bool = False,
    score: bool = True,
    **options: Unpack[Options],
) -> Result:
    """Trains in a run folder, from its newest checkpoint or the beginning, and scores the result.

    `longer`: a finished run goes on, also one that early stopping ended.
    """
    session = RunSession(run_folder, recipe, name, **options)
    with session.recorded():
        strategy = make_strategy(session.assemble())
        loop = Loop(
            strategy,
            session.progress_bar,
            exported_files=lambda: exported_files(strategy.evaluation),
            on_step=session.on_step,
        )
        session.restore(loop, longer)
        session.train(loop)
        if score:
            session.score(loop)
        session.hand_back(loop)
        return session.result(loop)


def launch(
    recipe: Recipe,
    out: str | Path | None,
    name: str,
    *,
    spec: specs.Model | None = None,
    overwrite: bool = False,
    **options: Unpack[Options],
) -> Result:
    """Checks a recipe, makes its run folder, and runs it, on all ranks that torchrun started.

    `overwrite`: a run that is in the folder is removed.

    A run that torchrun's elastic agent starts again goes on in its folder.
    """
    parts = options.get("parts", NO_PARTS)
    if out == "":  # a variable of the shell that is not set
        raise SettingError("the name of the run folder is empty", "name it, or leave --out out")
    folder = Path(out).expanduser() if out else None

    def prepared() -> tuple[RunFolder, Recipe]:
        preflight.check(recipe, parts, has_spec=spec is not None)
        fitting = model_spec.with_fitting_context(recipe, parts.model, parts.kinds)
        if folder is None and may_be_restarted():
            raise SettingError(
                "a run that may be restarted needs a fixed folder", "name it: --out DIR"
            )
        run_folder = begin(fitting, folder, name, parts.objective_name, overwrite=overwrite)
        if spec is not None:
            model_spec.write(run_folder, spec)
        return run_folder, fitting

    with joined(recipe.train.device, recipe.tensor_ranks) as ranks:
        options["ranks"] = ranks
        if folder is not None and was_restarted() and RunFolder(folder).recipe.is_file():
            return run(*read_run(folder), **options)
        begun = ranks.broadcast(ranks.on_main(prepared))
        assert begun is not None, "the main rank's, where it did not fail"
        return run(*begun, name, **options)


def resume(
    folder: str | Path,
    *,
    steps: int | None = None,
    quiet: bool = False,
    on_step: OnStep | None = None,
    kinds: Sequence[type] = (),
    data: DataSource | None = None,
    objective: type[Objective] | None = None,
) -> Result:
    """Resumes a run from its newest intact checkpoint.

    Example:
        `regard.resume("runs/mine")`, or for longer training `regard.resume("runs/mine",
        steps=20_000)`.

    `steps` replaces the number of steps of the recipe, also for a run that has finished. Parts,
    an objective or a data source from outside the package must be given again; the data source is
    needed only if the run was stopped before its data was stored.
    """
    check_types(folder=folder, source=data, objective_class=objective, on_step=on_step)
    run_folder, recipe, name = read_run(Path(folder).expanduser(), steps)
    parts = Parts(data, objective, kinds)
    with joined(recipe.train.device, recipe.tensor_ranks) as ranks:
        options = Options(quiet=quiet, on_step=on_step, parts=parts, ranks=ranks)
        return run(run_folder, recipe, name, longer=steps is not None, **options)
