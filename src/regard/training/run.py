"""Training runs: `regard.train` and `regard.finetune`, from a recipe to a finished run folder."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from regard import disk, memory
from regard import spec as specs
from regard.allocator import keep_large_blocks
from regard.checkpoint import Checkpoints, Retention, Snapshots
from regard.errors import (
    DiskError,
    RegardError,
    RegardWarning,
    SettingError,
    TrainingInterrupted,
)
from regard.metrics.scores import AnyScore
from regard.training import (
    learning_curves,
    model_card,
    model_spec,
    notices,
    preflight,
)
from regard.training.argument_types import check_types
from regard.training.assembly import assemble_on_ranks, exported_files, objective_class
from regard.training.engine import layerwise_lr_decay
from regard.training.engine.early_stopping import greater_is_better
from regard.training.engine.loop import Loop
from regard.training.engine.loss_spikes import LossSpikes
from regard.training.engine.lr_schedule import (
    ConstantRate,
    CosineDecay,
    InverseSquareRoot,
    LinearDecay,
    Schedule,
)
from regard.training.engine.metrics_log import MetricsLog, NoMetrics, last_losses
from regard.training.engine.optimizer import AdamConfig, Optimizer
from regard.training.engine.progress_bar import ProgressBar
from regard.training.objectives.objective import Objective
from regard.training.parallel.choice import make_strategy
from regard.training.parallel.launch import joined, may_be_restarted, was_restarted
from regard.training.parallel.ranks import ONE_RANK, Ranks
from regard.training.parallel.sharded_saving import on_all_ranks
from regard.training.parallel.strategy import Strategy
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder, begin, read_run
from regard.training.setup import DataSource, Setup

OnStep = Callable[[Loop], None]


@dataclass(frozen=True)
class Parts:
    """Parts of a run from outside the package.

    `source` takes the place of the recipe's files, `objective` that of its objective; `kinds` are
    the dataclasses of parts of its model.
    """

    source: DataSource | None = None
    objective: type[Objective] | None = None
    kinds: Sequence[type] = ()

    @property
    def objective_name(self) -> str | None:
        return None if self.objective is None else self.objective.__qualname__


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, its score on each test set, and what it took."""

    folder: Path
    scores: dict[str, AnyScore]
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


# --- starting and resuming ------------------------------------------------------------------------


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
    run_folder, recipe, name = read_run(Path(folder), steps)
    parts = Parts(data, objective, kinds)
    with joined(recipe.train.device, recipe.tensor_ranks) as ranks:
        return run(
            run_folder,
            recipe,
            name,
            quiet=quiet,
            on_step=on_step,
            parts=parts,
            longer=steps is not None,
            ranks=ranks,
        )


def launch(
    recipe: Recipe,
    out: str | Path | None,
    name: str,
    *,
    spec: specs.Model | None = None,
    quiet: bool = False,
    on_step: OnStep | None = None,
    parts: Parts | None = None,
) -> Result:
    """Checks a recipe, makes its run folder, and runs it, on all ranks that torchrun started.

    A run that torchrun's elastic agent starts again goes on in its folder.
    """
    parts = parts or Parts()
    if out == "":  # a variable of the shell that is not set
        raise SettingError("the name of the run folder is empty", "name it, or leave --out out")
    folder = Path(out) if out else None
    with joined(recipe.train.device, recipe.tensor_ranks) as ranks:
        if folder is not None and was_restarted() and RunFolder(folder).recipe.is_file():
            run_folder, recipe, name = read_run(folder)
            return run(
                run_folder, recipe, name, quiet=quiet, on_step=on_step, parts=parts, ranks=ranks
            )
        begun = ranks.broadcast(ranks.on_main(lambda: _begin(recipe, folder, name, spec, parts)))
        assert begun is not None, "the main rank's, where it did not fail"
        return start(begun, recipe, name, quiet=quiet, on_step=on_step, parts=parts, ranks=ranks)


def _begin(
    recipe: Recipe, folder: Path | None, name: str, spec: specs.Model | None, parts: Parts
) -> RunFolder:
    """A new run folder, after all checks that need no data."""
    objective = parts.objective or objective_class(recipe.objective)
    has_source = parts.source is not None
    preflight.check(
        recipe, objective, has_source=has_source, has_spec=spec is not None, kinds=parts.kinds
    )
    if folder is None and may_be_restarted():
        raise SettingError("a run that may be restarted needs a fixed folder", "name it: --out DIR")
    run_folder = begin(recipe, folder, name, parts.objective_name)
    if spec is not None:
        model_spec.write(run_folder, spec)
    return run_folder


def start(
    run_folder: RunFolder,
    recipe: Recipe,
    name: str,
    *,
    quiet: bool = False,
    on_step: OnStep | None = None,
    parts: Parts | None = None,
    ranks: Ranks = ONE_RANK,
) -> Result:
    """Runs a run that has just begun; one that cannot be assembled leaves no folder behind."""
    removal = _removed_if_not_assembled(run_folder, recipe) if ranks.is_main else nullcontext()
    with removal:
        return run(run_folder, recipe, name, quiet=quiet, on_step=on_step, parts=parts, ranks=ranks)


@contextmanager
def _removed_if_not_assembled(run_folder: RunFolder, recipe: Recipe) -> Iterator[None]:
    try:
        yield
    except RegardError:
        # Standard input cannot be read again: its copy is kept, if there was any.
        from_stdin = "-" in (recipe.data.text, recipe.data.pairs)
        has_copy = from_stdin and any(file.stat().st_size for file in run_folder.data.glob("*.*"))
        if not run_folder.metrics.exists() and not has_copy:
            run_folder.remove()
        raise


def run(
    run_folder: RunFolder,
    recipe: Recipe,
    name: str,
    *,
    quiet: bool = False,
    on_step: OnStep | None = None,
    parts: Parts | None = None,
    longer: bool = False,
    ranks: Ranks = ONE_RANK,
) -> Result:
    """Assembles model, data and objective; trains, scores, and writes the model card.

    `longer`: a finished run goes on, also one that early stopping ended. Of several ranks, the main
    one alone writes, locks and shows progress.
    """
    progress_bar = ProgressBar(recipe.train.steps, quiet or not ranks.is_main)
    if not ranks.is_main:
        ranks.on_main(lambda: None)  # waits for the lock
        return _run(run_folder, recipe, name, progress_bar, on_step, parts, longer, ranks)
    with ExitStack() as stack:
        ranks.on_main(lambda: stack.enter_context(run_folder.locked()))
        outcome = stack.enter_context(_outcome_written(run_folder))
        result = _run(run_folder, recipe, name, progress_bar, on_step, parts, longer, ranks)
        outcome |= {"status": "finished", "scores": _score_numbers(result.scores)}
        return result


@contextmanager
def _outcome_written(run_folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Writes state/outcome.json at the end of a run, also of one that fails.

    It is no part of the metrics, which a resumed run continues to the byte.
    """
    run_folder.outcome.unlink(missing_ok=True)
    outcome: dict[str, Any] = {}
    try:
        yield outcome
    except TrainingInterrupted:  # the run is stopped, not over
        raise
    except RegardError as error:
        failure = {"status": "failed", "problem": error.problem, "repair": error.repair}
        # On a full disk there is no room for the reason, either.
        with suppress(DiskError):
            disk.write_json(run_folder.outcome, failure)
        raise
    disk.write_json(run_folder.outcome, outcome)


def _score_numbers(scores: Mapping[str, AnyScore]) -> dict[str, dict[str, float]]:
    """Split → name → number, of the scores of a run."""
    return {
        split: {key: value for key, value in vars(score).items() if isinstance(value, int | float)}
        for split, score in scores.items()
    }


def _run(
    run_folder: RunFolder,
    recipe: Recipe,
    name: str,
    progress_bar: ProgressBar,
    on_step: OnStep | None,
    parts: Parts | None,
    longer: bool,
    ranks: Ranks,
) -> Result:
    parts = parts or Parts()
    run_folder.check_objective(parts.objective_name)
    keep_large_blocks()  # of memory, for the batches to come
    if recipe.train.threads:
        memory.require_threads(recipe.train.threads)
        torch.set_num_threads(recipe.train.threads)
    # TF32 is a switch of PyTorch, not a dtype: products of float32 matrices with 10-bit mantissas.
    torch.backends.cuda.matmul.allow_tf32 = recipe.train.precision == "tf32"
    setup = Setup(run_folder, recipe, progress_bar.say, parts.source, parts.kinds, ranks)
    if setup.device.index is not None:  # "cuda" alone is the current one
        torch.cuda.set_device(setup.device)
    objective = assemble_on_ranks(setup, parts.objective)
    recipe = objective.setup.recipe  # with what followed from the data
    progress_bar.set_steps(recipe.train.steps)
    # ELECTRA trains two models at once: the objective holds all that has gradients.
    model = objective.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    progress_bar.say(
        f"model: {parameters:,} parameters, {recipe.train.precision} "
        f"on {setup.device}{_on_ranks(recipe, ranks)}; run folder: {run_folder.folder}"
    )
    notices.say_all(recipe, setup.device, ranks, progress_bar.say)
    strategy = make_strategy(recipe, objective)
    tensorboard = run_folder.folder / "tensorboard" if recipe.train.tensorboard else None
    metrics = MetricsLog(run_folder.metrics, tensorboard) if ranks.is_main else NoMetrics()
    loop = Loop(
        recipe,
        strategy,
        make_optimizer(recipe, strategy, objective.d_model),
        (_checkpoints(run_folder, recipe), Snapshots(run_folder.snapshots)),
        metrics,
        progress_bar,
        exported_files=lambda: exported_files(strategy.evaluation),
        on_step=on_step,
    )
    if ranks.is_main:
        run_folder.delete_unfinished()
    saved = on_all_ranks(loop.checkpoints, ranks, lambda: loop.checkpoints.newest(progress_bar.say))
    if saved is not None:
        loop.restore(saved)
        if longer:
            loop.forget_early_stopping()
        finished = "; the run is finished" if loop.at_end else ""
        progress_bar.say(f"resuming at step {saved.step}{finished}")
    else:
        metrics.truncate(0)  # of a run that ended before its first checkpoint
    try:
        loop.run()
    finally:
        metrics.close()
    if loop.interrupted:
        raise _interruption(loop, run_folder, progress_bar)
    # The scores are of the weights in the folder: averaged, or the best, not the last.
    scores: dict[str, AnyScore] = {}
    with loop.exported(), warnings.catch_warnings():
        # Unknown words of the data were counted when it was prepared.
        warnings.simplefilter("ignore", RegardWarning)
        if ranks.is_main:
            scores = strategy.evaluation.scores()
    scores = ranks.broadcast(scores)
    progress = loop.progress
    if ranks.is_main:
        facts = model_card.Facts(parameters, progress.step, progress.seconds, scores)
        model_card.write(run_folder, recipe, name, facts)
    return Result(
        run_folder.folder,
        scores,
        progress.seconds,
        progress.compiling,
        parameters,
        steps=progress.step,
        losses=last_losses(run_folder.metrics),
    )


def _on_ranks(recipe: Recipe, ranks: Ranks) -> str:
    return f", {ranks.size} ranks ({recipe.parallel.strategy})" if ranks.several else ""


def _checkpoints(run_folder: RunFolder, recipe: Recipe) -> Checkpoints:
    train = recipe.train
    retention = Retention(
        train.keep_last,
        train.keep_best,
        train.keep_every,
        greater_is_better(train.metric),
        reach=LossSpikes(train.spike_threshold, train.rollback_steps).reach,
    )
    return Checkpoints(run_folder.checkpoints, retention)


def _interruption(
    loop: Loop, run_folder: RunFolder, progress_bar: ProgressBar
) -> TrainingInterrupted:
    step = loop.progress.step
    repair = f"resume with: regard train --resume {quote(str(run_folder.folder))}"
    progress_bar.say(f"saved at step {step}; {repair}")
    stopped_by = signal.Signals(loop.stop_signal).name
    return TrainingInterrupted(
        f"{stopped_by} stopped the run; it is saved at step {step}", repair, loop.stop_signal
    )


# --- optimization ---------------------------------------------------------------------------------


def make_optimizer(recipe: Recipe, strategy: Strategy, d_model: int) -> Optimizer:
    train = recipe.train
    lr_multipliers = None  # one learning rate for all parameters
    if recipe.is_finetuning:
        model = strategy.objective.model
        lr_multipliers = layerwise_lr_decay.lr_multipliers(model, recipe.tune.layer_decay)
    return Optimizer(
        strategy.parameters.items(),
        lr_schedule(recipe, d_model),
        AdamConfig(train.optimizer, train.betas, train.adam_eps, train.weight_decay),
        max_grad_norm=train.max_grad_norm,
        loss_scaling=train.precision == "fp16",  # bf16 has the exponents of float32
        lr_multipliers=lr_multipliers,
        total_norm=strategy.total_norm,
    )


def lr_schedule(recipe: Recipe, d_model: int) -> Schedule:
    """The learning-rate schedule of a recipe."""
    train = recipe.train
    peak = train.learning_rate
    if train.schedule == "paper":  # Equation 3
        if peak:
            return InverseSquareRoot.with_peak(peak, train.warmup_steps)
        return InverseSquareRoot(d_model, train.warmup_steps)
    assert peak is not None, "checked with the recipe"
    if train.schedule == "linear":
        return LinearDecay(peak, train.warmup_steps, train.steps)
    if train.schedule == "cosine":
        return CosineDecay(peak, train.warmup_steps, train.steps, train.min_lr_ratio)
    return ConstantRate(peak, train.warmup_steps)
