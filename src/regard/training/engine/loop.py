"""The training loop: batches in, updates out, with validation, logging and checkpoints.

What a run does between two checkpoints is a function of the first of them: a resumed run equals an
uninterrupted one, bit for bit.
"""

from __future__ import annotations

import itertools
import math
import signal
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from regard.builder.edit import compiled
from regard.core.mixers.linear_attention import redraw
from regard.core.norm import fixed_running_statistics
from regard.core.side import sides
from regard.data.batching import Batch, prefetch
from regard.evaluation.scores import Score
from regard.system import disk, memory
from regard.system.checkpoint import (
    BackgroundSave,
    Checkpoints,
    HostCopy,
    Retention,
    Saved,
    Snapshots,
    Tensors,
    check_tensors,
)
from regard.system.errors import (
    CheckpointError,
    DivergenceError,
    NonFiniteError,
    RegardWarning,
    TrainingInterrupted,
)
from regard.training.diagnostics.monitor import Monitor
from regard.training.engine import stop_signals
from regard.training.engine.metrics_log import MetricsLog, NoMetrics
from regard.training.engine.optimizer import autocast, make_optimizer
from regard.training.engine.progress import (
    DIVERGENCE_REPAIR,
    MAX_SKIPPED_UPDATES,
    EarlyStopping,
    LossSpikes,
    Position,
    Progress,
    SkippedBatches,
    greater_is_better,
)
from regard.training.engine.progress_bar import ProgressBar, duration
from regard.training.engine.train_step import Step
from regard.training.engine.weight_averaging import WeightAveraging, exported_files
from regard.training.objectives.objective import CarriesState
from regard.training.parallel.ranks import lost_ranks_reported
from regard.training.parallel.strategy import Strategy, assign, on_all_ranks

EXAMPLES_IN_A_REPORT = 3  # enough to see what is wrong with a batch
STEPS_WORTH_AN_ESTIMATE = 200  # shorter runs end about as soon as they are estimated
SAMPLE_WIDTH = 100  # characters
LONG_TRIAL = 2.0  # seconds of a batch


@dataclass(frozen=True)
class _PendingStep:
    """A step that the device may still be working on."""

    step: int
    batches: list[Batch]
    before: Position  # of its first batch
    after: Position
    outcome: Tensor  # [skipped, gradient norm, loss, −log p, tokens], on the device
    stop_votes: Tensor | None  # how many ranks want to stop, where there are several


class Loop:
    """One run.

    `on_step` is called after each update, once its logging and validation are done and its saving
    has begun: it may read `progress`, or end the run with `request_stop()`.
    """

    def __init__(
        self,
        strategy: Strategy,
        progress_bar: ProgressBar,
        on_step: Callable[[Loop], None] | None = None,
    ) -> None:
        objective = strategy.objective
        recipe = objective.setup.recipe
        settings = recipe.train
        self.settings = settings
        self.strategy = strategy
        self.ranks = strategy.ranks
        self.objective = objective
        self.model = objective.model
        self.optimizer = make_optimizer(strategy)
        self.progress_bar = progress_bar
        self.say = progress_bar.say
        self.on_step = on_step

        folder = objective.setup.run_folder
        self.spikes = LossSpikes(settings.spike_threshold, settings.rollback_steps)
        retention = Retention(
            settings.keep_last,
            settings.keep_best,
            settings.keep_every,
            greater_is_better(settings.metric),
            self.spikes.reach,
        )
        self.checkpoints = Checkpoints(folder.checkpoints, retention)
        self.snapshots = Snapshots(folder.snapshots)
        self.metrics: MetricsLog = NoMetrics()
        if self.ranks.is_main:
            tensorboard = folder.folder / "tensorboard" if settings.tensorboard else None
            self.metrics = MetricsLog(folder.metrics, tensorboard)
        self.monitor = Monitor(strategy.evaluation, self.optimizer, self.metrics, self.say)

        self.device = next(self.model.parameters()).device
        self.progress = Progress(threads=torch.get_num_threads())
        self.averaging = WeightAveraging(recipe.exported_weights, strategy, self.snapshots)
        self.early_stopping = EarlyStopping(settings.metric, settings.patience)
        # A recomputed forward (activation checkpointing) cannot be captured into a CUDA graph, nor
        # can one that counts tokens, or whose gradients DDP and FSDP2 sum on their own streams.
        waits = any(side.waits_for_device for side in sides(self.model))
        eager = waits or settings.gradient_checkpointing or self.ranks.several
        self.step = Step(
            strategy.loss,
            self.optimizer,
            self._autocast,
            cuda_graphs=objective.cuda_graphs and not eager,
            strategy=strategy if self.ranks.several else None,
        )
        # Sums of loss, −log p and tokens since the last line of the metrics log.
        self.window = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.gradient_norm = 0.0  # of the last inspected step, before clipping
        self.stop_signal = 0  # number of the signal, 0 for none
        self._requested_signal = int(signal.SIGTERM)  # reported if another rank asked to stop
        self._pending: _PendingStep | None = None
        self._background_save = BackgroundSave()
        self._rollback: SkippedBatches | None = None  # to do before the next step
        self._exported_step: int | None = None  # of the best weights, once they are written
        self._clock = time.perf_counter()
        self._log_start = (0.0, 0)  # seconds and tokens at the last line of the metrics log

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Trains to the last step, until early stopping, or until a stop is requested.

        The state is saved in every case, and on disk; a requested stop then raises
        `TrainingInterrupted`.
        """
        self._set_log_start()
        compiled_blocks: AbstractContextManager[object] = nullcontext()
        if self.compiles:
            self.say("compiling the blocks: the first steps will take longer")
            compiled_blocks = compiled(self.model)
        with (
            closing(self.metrics),
            stop_signals.handled(self._on_signal),
            compiled_blocks,
            # Its end waits for the last save, while signals are still handled.
            self._background_save,
            self.progress_bar.shown(self.progress.step),
            lost_ranks_reported(self.checkpoints.ranks_lost),
        ):
            self._start_monitor()
            self._say_estimate()
            self._clock = time.perf_counter()
            if self.compiles:
                # What only validation needs is compiled before the first step, and counted apart.
                self._evaluate()
                self.progress.compiling += time.perf_counter() - self._clock
            if self.spikes.enabled and self.progress.step == 0:
                self.save()  # a spike may come before the first interval is over
            if self.at_end:
                # The process before may have been killed after the last commit, before its export.
                self._background_save.start(partial(self._write_export, self._copy_exported()))
            while not self.is_over:
                with closing(self._batches()) as batches:
                    while not self.is_over and self._rollback is None:
                        before = self.progress.position
                        # Gradient accumulation: so many batches make up one update.
                        batch = list(itertools.islice(batches, self.settings.accumulate))
                        self.train_step(batch, before)
                        self._after_step()
                if self._rollback is not None:
                    self._roll_back(self._rollback)
        if self.interrupted:
            step = self.progress.step
            folder = str(self.objective.setup.run_folder.folder)
            repair = f"resume with: regard train --resume {quote(folder)}"
            self.say(f"saved at step {step}; {repair}")
            stopped_by = signal.Signals(self.stop_signal).name
            problem = f"{stopped_by} stopped the run; it is saved at step {step}"
            raise TrainingInterrupted(problem, repair, self.stop_signal)

    def _set_log_start(self) -> None:
        """What the next line of the metrics log counts from."""
        self._log_start = (self.progress.seconds, self.progress.tokens)

    @property
    def compiles(self) -> bool:
        return self.settings.compile and self.device.type == "cuda"

    @property
    def at_end(self) -> bool:
        return self.progress.step >= self.settings.steps or self.progress.finished

    @property
    def is_over(self) -> bool:
        return self.at_end or bool(self.stop_signal)

    @property
    def interrupted(self) -> bool:
        """Whether a stop was requested before the end of the run."""
        return bool(self.stop_signal) and not self.at_end

    def request_stop(self, signal_number: int = signal.SIGTERM) -> None:
        """Ends the run after the current step, with its state saved, as that signal would.

        Of several ranks all end after the same step: they learn of it with the sums of the next.
        """
        self._requested_signal = signal_number
        self.strategy.wants_stop = True
        if not self.ranks.several:
            self.stop_signal = signal_number

    def _on_signal(self, number: int) -> None:
        self.request_stop(number)
        self.say(f"{signal.Signals(number).name}: finishing the step and saving")

    def _batches(self) -> Generator[Batch, None, None]:
        """Batches from the saved position on, prepared in a thread of their own."""
        left_out: list[tuple[Position, Batch]] = []
        positions = self.objective.batches(self.progress.epoch, self.progress.index)
        if self.device.type == "cuda":
            # Only from pinned memory is the copy to a GPU asynchronous.
            positions = ((position, batch.pin()) for position, batch in positions)
        with closing(prefetch(positions)) as batches:
            for position, batch in batches:
                if any(stretch.covers(position) for stretch in self.progress.skipped):
                    left_out.append((position, batch))
                    continue
                if left_out:
                    self._report_rollback(left_out)
                    left_out = []
                # The position after this batch: where a resumed run goes on.
                self.progress.epoch, self.progress.index = position
                yield batch

    def _after_step(self) -> None:
        """Logs, validates and saves where it is time."""
        settings = self.settings
        step = self.progress.step
        intervals = (settings.log_every, settings.validate_every, settings.save_every)
        is_last = step == settings.steps
        logs, validates, saves = (is_last or step % interval == 0 for interval in intervals)
        if logs or validates or saves:
            self._inspect()
        saved = False
        # An update that will be undone is not recorded.
        if self._rollback is None:
            if logs:
                self._log()
            if validates:
                self._validate()
            if is_last:
                self._refuse_divergence()
            is_new_best = bool(settings.keep_best) and self.progress.best_step == step
            saved = saves or self.at_end or is_new_best
            if saved:
                self.save()
        if self.on_step is not None and self.ranks.is_main:
            self.on_step(self)
        # `on_step` may have asked to stop, after the check above.
        if self.interrupted and not saved:
            self.save()

    # --- one step ---------------------------------------------------------------------------------

    def train_step(self, batches: list[Batch], before: Position | None = None) -> None:
        """One update; `before` is the position of its first batch, for a roll-back."""
        self._background_save.check()  # nobody trains on for hours without checkpoints
        progress = self.progress
        progress.step += 1
        self.model.train()  # validation left it in eval mode
        redraw(self.model, progress.step)  # the random features of Performers
        with self._compilation_timed():
            outcome = self.step(batches, progress.step, self.settings.seed)
        skipped, _, loss, nll = outcome.unbind()  # on the device still
        counted = torch.stack([loss, nll, self.step.tokens])
        # Without a branch on the host: reading `skipped` would wait for the device.
        self.window += torch.where(skipped.bool(), 0.0, counted)
        self.averaging.after_update()
        progress.tokens += sum(batch.tokens for batch in batches)
        # The outcome of a step is read when the next one has been launched: the device never idles.
        self._inspect()
        after = progress.position
        outcome = torch.cat([outcome, self.step.tokens.reshape(1)])
        self._pending = _PendingStep(
            progress.step, batches, before or after, after, outcome, self.strategy.stop_votes
        )

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.settings.precision, self.device)

    def _inspect(self) -> None:
        """Reads the outcome of the pending step; reports a skipped update with its examples."""
        if self._pending is None or self._rollback is not None:
            return
        pending = self._pending
        self._pending = None
        skipped, norm, loss, _, tokens = pending.outcome.tolist()
        self.gradient_norm = norm
        if pending.stop_votes is not None and pending.stop_votes.item():
            self.stop_signal = self._requested_signal
        if skipped:
            self._report_skipped(pending, loss, norm)
        else:
            self.progress.bad = 0
        self._rollback = self.spikes.observe(
            self.progress, pending.step, pending.before, pending.after, loss / max(1.0, tokens)
        )

    def _report_skipped(self, pending: _PendingStep, loss: float, norm: float) -> None:
        scaler = self.optimizer.scaler
        # A finite loss with infinite gradients: the scale was too large for fp16.
        overflow = scaler.enabled and math.isfinite(loss)
        shown = self._rows(pending.batches)
        record = {
            "event": "skipped",
            "step": pending.step,
            "loss": loss,
            "gradient_norm": norm,
            **shown,
        }
        what = "loss or gradient is not finite"
        texts = "".join("\n    " + " ⇒ ".join(_texts(each)) for each in shown["examples"])
        if overflow:
            record |= {"event": "overflow", "loss_scale": scaler.scale.item()}
            what = "fp16 gradients overflowed; the loss scale was halved"
            texts = ""
        # An overflow is normal while the loss scale still has room to fall.
        if not (overflow and scaler.scale.item() >= 1):
            self.progress.bad += 1
        if self.progress.bad >= MAX_SKIPPED_UPDATES:
            with self.strategy.evaluated(None), self._autocast():
                if self.ranks.is_main:
                    record["origin"] = self.monitor.origin(pending.batches)
        self.metrics.write(record)
        self.say(
            f"step {pending.step}: {what}; update skipped "
            f"(loss {loss}, gradient norm {norm}){texts}"
        )
        if self.progress.bad >= MAX_SKIPPED_UPDATES and not self.spikes.enabled:
            raise DivergenceError(
                f"loss or gradients were not finite {MAX_SKIPPED_UPDATES} steps in a row, "
                f"last at step {pending.step}",
                DIVERGENCE_REPAIR,
            )

    def _rows(self, batches: list[Batch]) -> dict[str, list[Any]]:
        """The rows of some batches, and the first of them as text."""
        rows = [int(row) for batch in batches for row in batch.rows]
        examples = self.objective.examples(rows[:EXAMPLES_IN_A_REPORT])
        more = len(rows) - EXAMPLES_IN_A_REPORT
        if more > 0:
            examples = [*examples, {"row": -1, "text": f"… {more} more"}]
        return {"rows": rows, "examples": examples}

    # --- loss spikes ------------------------------------------------------------------------------

    def _roll_back(self, skipped: SkippedBatches) -> None:
        """Goes back to a checkpoint from before a spike; what is to be skipped is noted.

        The updates up to the skipped batches are then made again, and are the same: the run does
        not depend on which checkpoint was at hand. Nor does a run that is killed before it saves
        again: it finds the same spike.
        """
        self._rollback = None
        self._pending = None
        self._background_save.wait()
        saved = on_all_ranks(self.checkpoints, self.ranks, self.say, until=skipped.step)
        if saved is None:
            raise CheckpointError(
                f"no checkpoint at or before step {skipped.step} is left to roll back to",
                "start the run again, or resume it with another spike_threshold",
            )
        loss = "not finite" if skipped.loss is None else f"{skipped.loss:.3f}"
        self.say(
            f"step {skipped.spike}: loss spike ({loss}); rolling back to step {saved.step} "
            f"to skip the batches of steps {skipped.step + 1} to {skipped.spike}"
        )
        stretches = [*self.progress.skipped, skipped]
        seconds = self._update_clock()
        self.restore(saved)
        self.progress.skipped = stretches
        self.progress.seconds = seconds  # the time was spent
        self._set_log_start()
        self._exported_step = None
        # They hold the addresses of the optimizer's old tensors.
        self.step.captured.clear()
        self._start_monitor()

    def _report_rollback(self, left_out: list[tuple[Position, Batch]]) -> None:
        """Records batches that are skipped, before the update that would have been theirs."""
        spikes = [
            {"step": stretch.spike, "loss": stretch.loss}
            for stretch in self.progress.skipped
            if any(stretch.covers(position) for position, _ in left_out)
        ]
        self.metrics.write(
            {
                "event": "rollback",
                "step": self.progress.step,
                "spikes": spikes,
                "batches": len(left_out),
                **self._rows([batch for _, batch in left_out]),
            }
        )

    @contextmanager
    def _compilation_timed(self) -> Iterator[None]:
        """Counts a step's time as compilation if anything was compiled or captured in it."""
        if not self.compiles:
            yield
            return
        graphs = _compiled_graphs()
        started = time.perf_counter()
        yield
        if _compiled_graphs() > graphs or not self.step.warm:
            torch.cuda.synchronize()  # the time of the step itself, not of its launch
            self.progress.compiling += time.perf_counter() - started

    # --- the time that the run will take ----------------------------------------------------------

    def _start_monitor(self) -> None:
        with self.strategy.evaluated(None):
            if self.ranks.is_main:
                self.monitor.start(self.progress.step)

    def _say_estimate(self) -> None:
        """Says before the first step how long the run will take: one batch is tried and undone."""
        remaining = self.settings.steps - self.progress.step
        # A compiled step is not known before, and one that carries state cannot be tried.
        # Nor is what the ranks say to each other.
        unknown = self.compiles or isinstance(self.objective, CarriesState) or self.ranks.several
        if remaining < STEPS_WORTH_AN_ESTIMATE or unknown:
            return
        _, batch = next(self.objective.batches(self.progress.epoch, self.progress.index))
        tensors = batch.to(self.device).tensors
        self.model.train()
        seconds = 0.0
        # The first pass also allocates memory and chooses kernels; a slow model is tried once.
        for _ in range(2):
            started = time.perf_counter()
            with fixed_running_statistics(self.model):
                with self._autocast():
                    loss, _ = self.objective.loss(tensors)
                loss.backward()
            for parameter in self.model.parameters():
                parameter.grad = None
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            if seconds > LONG_TRIAL:
                break
        seconds *= self.settings.accumulate
        self.say(
            f"estimate: {duration(seconds * remaining)} for {remaining:,} steps "
            f"of {seconds:.2g} s, plus validation"
        )

    # --- logging and validation -------------------------------------------------------------------

    def _update_clock(self) -> float:
        """Adds the time since the last call to the seconds of training."""
        now = time.perf_counter()
        self.progress.seconds += now - self._clock
        self._clock = now
        return self.progress.seconds

    def _log(self) -> None:
        progress = self.progress
        loss, nll, tokens = self.window.tolist()  # waits for the device
        self.window.zero_()
        seconds = self._update_clock()
        last_seconds, last_tokens = self._log_start
        rate = (progress.tokens - last_tokens) / max(1e-9, seconds - last_seconds)
        self._set_log_start()
        # Where every update since the last line was skipped, there is no loss.
        mean_loss = loss / tokens if tokens else math.nan
        unit = self.objective.unit
        record = {
            "step": progress.step,
            "loss": mean_loss,
            "nll": nll / tokens if tokens else math.nan,
            "gradient_norm": self.gradient_norm,
            "learning_rate": self.optimizer.schedule(progress.step),
            "epoch": progress.epoch,
            "tokens": progress.tokens,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(rate, 1),
            "unit": unit,  # of what the keys above call tokens
        }
        self.metrics.write(record)
        if self.ranks.is_main:
            self.monitor.after_log(record)
        # Compilation happens once: it says nothing of the steps to come.
        seconds_per_step = (seconds - progress.compiling) / progress.step
        remaining = seconds_per_step * (self.settings.steps - progress.step)
        note = f"loss {mean_loss:.3f}  {rate:,.0f} {unit}/s"
        self.progress_bar.update(progress.step, note, seconds, remaining)

    def _validate(self) -> None:
        progress = self.progress
        validation = self._evaluate()
        if validation is None:
            return
        improved = self.early_stopping.update(progress, validation)
        self.averaging.after_validation(progress, improved)
        record = {"event": "validation", "step": progress.step, **validation, "best": improved}
        self.metrics.write(record)
        if self.ranks.is_main:
            self.monitor.after_validation(record)
        numbers = [f"{key} {v:.3f}" for key, v in validation.items() if isinstance(v, float)]
        mark = "  (best)" if improved else ""
        self.say(f"step {progress.step}  validation: {'  '.join(numbers)}{mark}")
        for sample in validation.get("samples", []):
            self.say("    " + "\n    ⇒ ".join(_texts(sample)[:2]))
        if progress.finished:
            self.say(
                f"no improvement in {progress.stale} validations: stopping at step {progress.step}"
            )
        self._update_clock()

    def _refuse_divergence(self) -> None:
        """An error instead of a finished run, if its last updates left no finite score."""
        progress = self.progress
        score = progress.score
        is_lost = progress.bad > 0 and (score is None or progress.bad == progress.step)
        if is_lost or (score is not None and not math.isfinite(score)):
            raise DivergenceError(
                f"the last {progress.bad} of {progress.step} updates had no finite loss or "
                f"gradient, and the last validation score is {score}",
                DIVERGENCE_REPAIR,
            )

    def _evaluate(self) -> dict[str, Any] | None:
        # Validation comes rarely: compiling kernels of its own would not pay.
        eager: AbstractContextManager[Any] = nullcontext()
        if self.compiles:
            eager = torch.compiler.set_stance("force_eager")
        validation = None
        with eager, self._evaluated(self.averaging.validated(self.progress)):
            if self.ranks.is_main:
                objective = self.strategy.evaluation
                objective.autocast = self._autocast()
                try:
                    validation = objective.validate()
                except NonFiniteError as error:
                    problem = f"validation at step {self.progress.step}: {error.problem}"
                    raise DivergenceError(problem, DIVERGENCE_REPAIR) from None
        return self.ranks.broadcast(validation)

    # --- checkpoints ------------------------------------------------------------------------------

    def save(self) -> None:
        """Copies everything the next step depends on, and has a thread commit it as a checkpoint.

        Training goes on meanwhile; an error in the thread is raised by the next step.
        """
        self._inspect()
        if self._rollback is not None:
            return  # the checkpoint it goes back to is on disk
        self._update_clock()
        # One save in flight: host memory has room for one copy of the state.
        self._background_save.wait()
        progress = self.progress
        loss, nll, tokens = self.window.tolist()
        progress.window = (loss, nll, tokens)
        # A resumed run truncates its log to here, and writes the same lines again.
        progress.metrics_position = self.metrics.position()
        groups = self._copied_groups() | {"optimizer": self.optimizer.state()}
        if "carry" in groups:
            rows = {name: self.ranks.all_rows(tensor) for name, tensor in groups["carry"].items()}
            groups["carry"] = rows
        state = HostCopy.of(self.strategy.written_groups(groups))
        values = asdict(progress)  # a deep copy
        shards = self.strategy.shard_names(groups)
        export = self._copy_exported()
        self._background_save.start(partial(self._write, values, state, shards, export))
        self._update_clock()

    def _copied_groups(self) -> dict[str, Tensors]:
        """The tensors of the state that are copied in place: weights, averages, carried state."""
        groups = {"weights": self.averaging.current()}
        if self.averaging.ema is not None:
            groups["ema"] = self.averaging.ema
        if isinstance(self.objective, CarriesState):
            groups["carry"] = self.objective.carry
        return groups

    def _copy_exported(self) -> HostCopy | None:
        """The files to export, unless they are already written and the same."""
        best_step = self.averaging.best_step(self.progress)
        is_written = best_step is not None and best_step == self._exported_step
        if is_written or self.progress.step == 0:
            return None
        self._exported_step = best_step
        with self._evaluated(self.averaging.selected(self.progress)):
            if not self.ranks.is_main:
                return None
            files = exported_files(self.strategy.evaluation)
            return HostCopy.of({str(path): tensors for path, tensors in files.items()})

    def _write(
        self,
        progress: dict[str, Any],
        state: HostCopy,
        shards: Sequence[str],
        export: HostCopy | None,
    ) -> None:
        """Commits a checkpoint, in the thread that saves; other ranks write their parts of it."""
        step = progress["step"]
        if not self.ranks.is_main:
            self.checkpoints.write_shards(step, state.wait())
            return
        # Before the commit: the checkpoint says how long the log is.
        self.metrics.sync()
        self.checkpoints.save(step, state.wait(), progress, shards)
        # Any checkpoint on disk may be the one to resume from, so the snapshots of all stay.
        used: set[int] = set()
        for values in self.checkpoints.progresses():
            with suppress(CheckpointError):  # of one that cannot be resumed
                saved = Progress.from_json(values)
                used |= {saved.best_step, *saved.averaged}
        self.snapshots.delete_all_but(used, until=step)
        # After the checkpoint: a failed export loses no training.
        self._write_export(export)

    def _write_export(self, export: HostCopy | None) -> None:
        if export is not None:
            for path, tensors in export.wait().items():
                disk.replace_tensors(Path(path), tensors)

    def resume(self, longer: bool) -> None:
        """Takes the run to its newest checkpoint, if there is one; `longer` than early stopping."""
        if self.ranks.is_main:
            self.objective.setup.run_folder.delete_unfinished()
        saved = on_all_ranks(self.checkpoints, self.ranks, self.say)
        if saved is None:
            self.metrics.truncate(0)  # of a run that ended before its first checkpoint
            return
        self.restore(saved)
        if longer:
            self.progress.finished = False
            self.progress.stale = 0
        finished = "; the run is finished" if self.at_end else ""
        self.say(f"resuming at step {saved.step}{finished}")

    def restore(self, saved: Saved) -> None:
        """Resumes from a checkpoint: weights, optimizer, averages, position, log and threads."""
        self.progress = Progress.from_json(saved.progress)
        # As many as before: the order of sums on a CPU depends on it.
        threads = self.progress.threads or torch.get_num_threads()
        memory.require_threads(threads)
        torch.set_num_threads(threads)
        # Of the full tensors, what this rank holds.
        groups = {group: self.strategy.parts(each) for group, each in saved.groups.items()}
        for group, tensors in self._copied_groups().items():
            check_tensors(groups.get(group, {}), tensors)
            assign(tensors, groups[group])
        self.optimizer.load(groups.get("optimizer", {}))
        self.averaging.leave_out_damaged(self.progress, self.say)
        self.window = torch.tensor(self.progress.window, dtype=torch.float64, device=self.device)
        if not self.metrics.truncate(self.progress.metrics_position):
            log = self.metrics.path.name
            self.say(f"warning: {log} was changed since the checkpoint: its curves have a gap")

    def scores(self) -> dict[str, Score]:
        """The scores of the weights that are exported: averaged, or the best, not the last."""
        scores: dict[str, Score] = {}
        with self._evaluated(self.averaging.selected(self.progress)):
            if self.ranks.is_main:
                scores = self.strategy.evaluation.scores()
        return self.ranks.broadcast(scores)

    @contextmanager
    def _evaluated(self, weights: Tensors | None) -> Iterator[None]:
        """These full weights in the model of the evaluation; None are those that are trained."""
        with self.strategy.evaluated(weights, self.progress.step), warnings.catch_warnings():
            # Unknown words of the data were counted when it was prepared.
            warnings.simplefilter("ignore", RegardWarning)
            yield


def _texts(example: dict[str, Any]) -> list[str]:
    """The texts of an example or a sample, each on one line; the metrics log has all of them."""
    lines = [" ".join(value.split()) for value in example.values() if isinstance(value, str)]
    return [line if len(line) <= SAMPLE_WIDTH else line[: SAMPLE_WIDTH - 1] + "…" for line in lines]


def _compiled_graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
