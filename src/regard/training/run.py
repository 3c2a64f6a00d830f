"""Training runs: `regard.train` and `regard.finetune`, from a recipe to a finished run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import torch

from regard import spec
from regard.builder import edit
from regard.evaluation.scores import Score
from regard.models import Model
from regard.system import disk, memory
from regard.system.errors import DiskError, RegardError, SettingError, TrainingInterrupted
from regard.training import model_card, model_spec, preflight
from regard.training.assembly import assemble
from regard.training.engine.loop import Loop
from regard.training.engine.metrics_log import last_losses
from regard.training.engine.progress_bar import ProgressBar
from regard.training.objectives.objective import Objective
from regard.training.parallel.ranks import ONE_RANK, Ranks, joined, may_be_restarted, was_restarted
from regard.training.parallel.strategy import DataParallel, Strategy, assign
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
    ranks = options.get("ranks", ONE_RANK)
    is_quiet = options.get("quiet", False) or not ranks.is_main
    progress_bar = ProgressBar(recipe.train.steps, is_quiet)
    setup = Setup(run_folder, recipe, progress_bar.say, options.get("parts", NO_PARTS), ranks)
    with _recorded(setup) as scores:
        run_folder.check_objective(setup.parts.objective_name)
        _set_up_process(setup)
        objective = None
        with ranks.main_first() as is_main:
            if is_main:
                objective = assemble(setup)
                recipe = objective.setup.recipe
        recipe = ranks.broadcast(recipe)
        if objective is None:  # the other ranks read what the main rank has written
            objective = assemble(replace(setup, recipe=recipe), again=True)
        # The main rank may fail next, and remove the folder that the others still read.
        ranks.barrier()
        progress_bar.set_steps(recipe.train.steps)
        # Counted before they are sharded. ELECTRA trains two models at once: the objective holds
        # all that has gradients.
        parameters = sum(parameter.numel() for parameter in objective.model.parameters())
        preflight.say_all(objective.setup, parameters)
        loop = Loop(make_strategy(objective), progress_bar, options.get("on_step"))
        loop.resume(longer)
        loop.run()
        if score:
            scores |= loop.scores()
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


@contextmanager
def _recorded(setup: Setup) -> Iterator[dict[str, Score]]:
    """Locks the run folder, and writes how the run ended, with the scores that it yields.

    The folder of a new run that could not be assembled is removed.
    """
    run_folder = setup.run_folder
    scores: dict[str, Score] = {}
    with ExitStack() as stack:
        with setup.ranks.main_first() as is_main:
            if is_main:
                stack.enter_context(run_folder.locked())
                run_folder.outcome.unlink(missing_ok=True)
        try:
            yield scores
        except RegardError as error:
            if setup.ranks.is_main and not isinstance(error, TrainingInterrupted):
                _fail(setup, error)
            raise
        # state/outcome.json is no part of the metrics, which are continued to the byte.
        if setup.ranks.is_main:
            numbers = {
                split: {
                    key: one for key, one in vars(score).items() if isinstance(one, int | float)
                }
                for split, score in scores.items()
            }
            outcome = {"status": "finished", "scores": disk.json_value(numbers)}
            disk.write_json(run_folder.outcome, outcome)


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


def _set_up_process(setup: Setup) -> None:
    """What of a recipe is a state of the process: threads, the precision of products, the GPU."""
    memory.keep_large_blocks()  # for the batches to come
    train = setup.recipe.train
    if train.threads:
        memory.require_threads(train.threads)
        torch.set_num_threads(train.threads)
    # TF32 is a switch of PyTorch, not a dtype: products of float32 matrices with 10-bit mantissas.
    torch.backends.cuda.matmul.allow_tf32 = train.precision == "tf32"
    if setup.device.index is not None:  # "cuda" alone is the current one
        torch.cuda.set_device(setup.device)


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


# --- new runs, and runs that go on ----------------------------------------------------------------


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
    with joined(recipe.train.device, recipe.tensor_ranks) as ranks:
        options["ranks"] = ranks
        if folder is not None and was_restarted() and RunFolder(folder).recipe.is_file():
            return run(*read_run(folder), **options)
        run_folder = None
        with ranks.main_first() as is_main:
            if is_main:
                preflight.check(recipe, parts)
                recipe = model_spec.with_fitting_context(recipe, parts.model, parts.kinds)
                if folder is None and may_be_restarted():
                    raise SettingError(
                        "a run that may be restarted needs a fixed folder", "name it: --out DIR"
                    )
                run_folder = begin(recipe, folder, name, parts.objective_name, overwrite=overwrite)
                if parts.spec is not None:
                    disk.write_json(run_folder.model, spec.to_dict(parts.spec))
        run_folder, recipe = ranks.broadcast((run_folder, recipe))
        assert run_folder is not None, "the main rank's"
        return run(run_folder, recipe, name, **options)


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
