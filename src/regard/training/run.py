"""Training runs: `regard.train` and `regard.finetune`, from a recipe to a finished run folder."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TypedDict, Unpack

import torch

from regard.builder import edit
from regard.evaluation.scores import Score
from regard.models import Model
from regard.system import disk, memory
from regard.system.errors import (
    DiskError,
    RegardError,
    RegardWarning,
    SettingError,
    TrainingInterrupted,
)
from regard.system.memory import keep_large_blocks
from regard.training import model_card, model_spec, preflight
from regard.training.assembly import assemble_on_ranks, exported_files
from regard.training.engine.loop import Loop
from regard.training.engine.metrics_log import last_losses
from regard.training.engine.progress_bar import ProgressBar
from regard.training.objectives.objective import Objective
from regard.training.parallel.ranks import ONE_RANK, Ranks, joined, may_be_restarted, was_restarted
from regard.training.parallel.strategy import DataParallel, Strategy, assign, on_all_ranks
from regard.training.recipe.schema import Recipe
from regard.training.result import Result
from regard.training.run_folder import RunFolder, begin, read_run
from regard.training.setup import NO_PARTS, DataSource, Parts, Setup, check_types

OnStep = Callable[[Loop], None]


class Options(TypedDict, total=False):
    """How a run is watched, what it has from outside the package, and the ranks it is on."""

    quiet: bool
    on_step: OnStep | None
    parts: Parts
    ranks: Ranks


# --- one run in its folder ------------------------------------------------------------------------


@contextmanager
def _recorded(setup: Setup, scores: Mapping[str, Score]) -> Iterator[None]:
    """Locks the run folder, and writes how the run ended.

    The folder of a new run that could not be assembled is removed.
    """
    run_folder = setup.run_folder
    is_main = setup.ranks.is_main
    with ExitStack() as stack:
        setup.ranks.on_main(lambda: stack.enter_context(run_folder.locked()))
        if is_main:
            run_folder.outcome.unlink(missing_ok=True)
        try:
            yield
        except RegardError as error:
            if is_main and not isinstance(error, TrainingInterrupted):
                _fail(setup, error)
            raise
        # state/outcome.json is no part of the metrics, which are continued to the byte.
        if is_main:
            outcome = {"status": "finished", "scores": _numbers(scores)}
            disk.write_json(run_folder.outcome, disk.json_value(outcome))


def _fail(setup: Setup, error: RegardError) -> None:
    run_folder = setup.run_folder
    data = setup.recipe.data
    failure = {"status": "failed", "problem": error.problem, "repair": error.repair}
    # On a full disk there is no room for the reason, either.
    with suppress(DiskError):
        disk.write_json(run_folder.outcome, failure)
    # Standard input cannot be read again: its copy is kept, if there was any.
    files = run_folder.data.glob("*.*") if "-" in (data.text, data.pairs) else ()
    has_copy = any(file.stat().st_size for file in files)
    if run_folder.is_new and not run_folder.metrics.exists() and not has_copy:
        run_folder.remove()


def _assemble(setup: Setup) -> Objective:
    """Model, data and objective; the setup of these has the final recipe."""
    setup.run_folder.check_objective(setup.parts.objective_name)
    keep_large_blocks()  # of memory, for the batches to come
    train = setup.recipe.train
    if train.threads:
        memory.require_threads(train.threads)
        torch.set_num_threads(train.threads)
    # TF32 is a switch of PyTorch, not a dtype: products of float32 matrices with 10-bit mantissas.
    torch.backends.cuda.matmul.allow_tf32 = train.precision == "tf32"
    if setup.device.index is not None:  # "cuda" alone is the current one
        torch.cuda.set_device(setup.device)
    return assemble_on_ranks(setup)


def _restore(loop: Loop, longer: bool) -> None:
    """Takes the loop to the newest checkpoint, if there is one."""
    if loop.ranks.is_main:
        loop.objective.setup.run_folder.delete_unfinished()
    saved = on_all_ranks(loop.checkpoints, loop.ranks, loop.say)
    if saved is None:
        loop.metrics.truncate(0)  # of a run that ended before its first checkpoint
        return
    loop.restore(saved)
    if longer:  # early stopping may have ended it
        loop.progress.finished = False
        loop.progress.stale = 0
    finished = "; the run is finished" if loop.at_end else ""
    loop.say(f"resuming at step {saved.step}{finished}")


def _train(loop: Loop) -> None:
    """To the last step; raises `TrainingInterrupted` once a stopped run is saved."""
    with closing(loop.metrics):
        loop.run()
    if not loop.interrupted:
        return
    step = loop.progress.step
    folder = str(loop.objective.setup.run_folder.folder)
    repair = f"resume with: regard train --resume {quote(folder)}"
    loop.say(f"saved at step {step}; {repair}")
    stopped_by = signal.Signals(loop.stop_signal).name
    raise TrainingInterrupted(
        f"{stopped_by} stopped the run; it is saved at step {step}", repair, loop.stop_signal
    )


def _score(loop: Loop) -> dict[str, Score]:
    """The scores of the weights in the folder: averaged, or the best, not the last."""
    scores: dict[str, Score] = {}
    with loop.exported(), warnings.catch_warnings():
        # Unknown words of the data were counted when it was prepared.
        warnings.simplefilter("ignore", RegardWarning)
        if loop.ranks.is_main:
            scores = loop.strategy.evaluation.scores()
    return loop.ranks.broadcast(scores)


def _hand_back(loop: Loop) -> None:
    """Leaves the exported weights in a model that was given, which can be used again."""
    trained: Model = loop.objective.trained_model
    if trained is not loop.objective.setup.parts.model:
        return  # a new head made another model of it
    if not loop.ranks.several:
        assign(loop.averaging.parameters, loop.averaging.selected(loop.progress))
    with torch.no_grad():
        edit.merge(trained.model)  # LoRA
    trained.model.requires_grad_(True).eval()


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
    parts = options.get("parts", NO_PARTS)
    ranks = options.get("ranks", ONE_RANK)
    is_quiet = options.get("quiet", False) or not ranks.is_main
    progress_bar = ProgressBar(recipe.train.steps, is_quiet)
    setup = Setup(run_folder, recipe, progress_bar.say, parts, ranks)
    scores: dict[str, Score] = {}
    with _recorded(setup, scores):
        objective = _assemble(setup)
        recipe = objective.setup.recipe
        progress_bar.set_steps(recipe.train.steps)
        # Counted before they are sharded. ELECTRA trains two models at once: the objective holds
        # all that has gradients.
        parameters = sum(parameter.numel() for parameter in objective.model.parameters())
        preflight.say_all(objective.setup, parameters)
        strategy = make_strategy(objective)
        files = partial(exported_files, strategy.evaluation)
        loop = Loop(strategy, progress_bar, files, options.get("on_step"))
        _restore(loop, longer)
        _train(loop)
        if score:
            scores |= _score(loop)
        _hand_back(loop)
        progress = loop.progress
        result = Result(
            run_folder.folder,
            scores,
            progress.seconds,
            progress.compiling,
            parameters,
            steps=progress.step,
            losses=last_losses(run_folder.metrics),
        )
        if ranks.is_main:
            model_card.write(run_folder, recipe, name, result)
        return result


def launch(
    recipe: Recipe,
    out: str | Path | None,
    name: str,
    *,
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
        preflight.check(recipe, parts)
        fitting = model_spec.with_fitting_context(recipe, parts.model, parts.kinds)
        if folder is None and may_be_restarted():
            raise SettingError(
                "a run that may be restarted needs a fixed folder", "name it: --out DIR"
            )
        run_folder = begin(fitting, folder, name, parts.objective_name, overwrite=overwrite)
        if parts.spec is not None:
            model_spec.write(run_folder, parts.spec)
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
