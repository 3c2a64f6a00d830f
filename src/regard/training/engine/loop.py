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
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checkpoint import Checkpoints, Saved, Snapshots, Tensors
from regard.core.global_attention import counts_global_tokens
from regard.core.linear_attention import redraw
from regard.data.batching import Batch, prefetch
from regard.edit import compiled
from regard.errors import DivergenceError, RegardWarning
from regard.training.diagnostics.monitor import Monitor
from regard.training.engine import stop_signals
from regard.training.engine.early_stopping import EarlyStopping
from regard.training.engine.metrics_log import MetricsLog
from regard.training.engine.mixed_precision import autocast
from regard.training.engine.optimizer import Optimizer
from regard.training.engine.progress import Progress
from regard.training.engine.progress_bar import ProgressBar, duration
from regard.training.engine.train_step import Step
from regard.training.engine.weight_averaging import WeightAveraging
from regard.training.objectives.objective import CarriesState
from regard.training.parallel.strategy import Strategy
from regard.training.recipe.schema import Recipe

MAX_SKIPPED_UPDATES = 3  # in a row, before the run has diverged
EXAMPLES_IN_A_REPORT = 3  # enough to see what is wrong with a batch
STEPS_WORTH_AN_ESTIMATE = 200  # shorter runs end about as soon as they are estimated
SAMPLE_WIDTH = 100  # characters
LONG_TRIAL = 2.0  # seconds of a batch


@dataclass(frozen=True)
class _PendingStep:
    """A step that the device may still be working on."""

    step: int
    batches: list[Batch]
    outcome: Tensor  # [skipped, gradient norm, loss, −log p], on the device
    stop_votes: Tensor | None  # how many ranks want to stop, where there are several


class Loop:
    """One run.

    `after_save` is called after each checkpoint, with the weights to export in the model. `on_step`
    is called after each update, once its logging, validation and saving are done: it may read
    `progress`, or end the run with `request_stop()`.
    """

    def __init__(
        self,
        recipe: Recipe,
        strategy: Strategy,
        optimizer: Optimizer,
        stores: tuple[Checkpoints, Snapshots],
        metrics: MetricsLog,
        progress_bar: ProgressBar,
        after_save: Callable[[], None] | None = None,
        on_step: Callable[[Loop], None] | None = None,
    ) -> None:
        objective = strategy.objective
        self.settings = recipe.train
        self.strategy = strategy
        self.ranks = strategy.ranks
        self.objective = objective
        self.model = objective.model
        self.optimizer = optimizer
        self.checkpoints, self.snapshots = stores
        self.metrics = metrics
        self.progress_bar = progress_bar
        self.after_save = after_save
        self.on_step = on_step
        self.monitor = Monitor(strategy.evaluation, optimizer, metrics, self._say)

        self.device = next(self.model.parameters()).device
        self.progress = Progress(threads=torch.get_num_threads())
        self.averaging = WeightAveraging(recipe.exported_weights, strategy, self.snapshots)
        self.early_stopping = EarlyStopping(self.settings.metric, self.settings.patience)
        # A recomputed forward (activation checkpointing) cannot be captured into a CUDA graph, nor
        # can one that counts tokens, or whose gradients DDP and FSDP2 sum on their own streams.
        cuda_graphs = objective.cuda_graphs and not self.settings.recompute
        cuda_graphs = cuda_graphs and not counts_global_tokens(self.model)
        self.step = Step(
            strategy.loss,
            optimizer,
            self._autocast,
            cuda_graphs=cuda_graphs and not self.ranks.several,
            strategy=strategy if self.ranks.several else None,
        )
        # Sums of loss, −log p and tokens since the last line of the metrics log.
        self.window = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.gradient_norm = 0.0  # of the last inspected step, before clipping
        self.stop_signal = 0  # number of the signal, 0 for none
        self._requested_signal = int(signal.SIGTERM)  # of this rank, if any was received
        self._pending: _PendingStep | None = None
        self._clock = time.perf_counter()
        self._logged_seconds = 0.0  # at the last line of the metrics log
        self._logged_tokens = 0

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Trains to the last step, until early stopping, or until a stop is requested.

        The state is saved in every case; after a requested stop `interrupted` is true.
        """
        progress = self.progress
        self._logged_seconds = progress.seconds
        self._logged_tokens = progress.tokens
        with (
            stop_signals.handled(self._on_signal),
            self._compiled(),
            closing(self._batches()) as batches,
        ):
            self.progress_bar.start(progress.step)
            try:
                with self.strategy.evaluated(None):
                    if self.ranks.is_main:
                        self.monitor.start(progress.step)
                self._say_estimate()
                self._clock = time.perf_counter()
                self._warm_up()
                while not (self.at_end or self.interrupted):
                    # Gradient accumulation: so many batches make up one update.
                    self.train_step(list(itertools.islice(batches, self.settings.accumulate)))
                    self._after_step()
            finally:
                self.progress_bar.stop()

    def forget_early_stopping(self) -> None:
        """Lets a run go on that early stopping ended: it is resumed to be trained longer."""
        self.progress.finished = False
        self.progress.stale = 0

    @property
    def at_end(self) -> bool:
        return self.progress.step >= self.settings.steps or self.progress.finished

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
        self.progress_bar.say(f"{signal.Signals(number).name}: finishing the step and saving")

    def _batches(self) -> Generator[Batch, None, None]:
        """Batches from the saved position on, prepared in a thread of their own."""

        def prepared() -> Iterator[tuple[tuple[int, int], Batch]]:
            for position, batch in self.objective.batches(self.progress.epoch, self.progress.index):
                # Only from pinned memory is the copy to a GPU asynchronous.
                yield position, batch.pin() if self.device.type == "cuda" else batch

        with closing(prefetch(prepared())) as batches:
            for position, batch in batches:
                # The position after this batch: where a resumed run goes on.
                self.progress.epoch, self.progress.index = position
                yield batch

    def _after_step(self) -> None:
        step = self.progress.step
        last = step == self.settings.steps
        if step % self.settings.log_every == 0 or last:
            self._log()
        if step % self.settings.validate_every == 0 or last:
            self._validate()
        saved = step % self.settings.save_every == 0 or self.at_end
        if saved:
            self.save()
        if self.on_step is not None and self.ranks.is_main:
            self.on_step(self)
        # `on_step` may have asked to stop, after the check above.
        if self.interrupted and not saved:
            self.save()

    # --- one step ---------------------------------------------------------------------------------

    def train_step(self, batches: list[Batch]) -> None:
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
        self._pending = _PendingStep(progress.step, batches, outcome, self.strategy.stop_votes)

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.settings.precision, self.device)

    def _inspect(self) -> None:
        """Reads the outcome of the pending step; reports a skipped update with its examples."""
        if self._pending is None:
            return
        pending = self._pending
        self._pending = None
        skipped, norm, loss, _ = pending.outcome.tolist()
        self.gradient_norm = norm
        if pending.stop_votes is not None and pending.stop_votes.item():
            self.stop_signal = self._requested_signal
        if skipped:
            self._report_skipped(pending, loss, norm)
        else:
            self.progress.bad = 0

    def _report_skipped(self, pending: _PendingStep, loss: float, norm: float) -> None:
        scaler = self.optimizer.scaler
        # A finite loss with infinite gradients: the scale was too large for fp16.
        overflow = scaler.enabled and math.isfinite(loss)
        examples = self._examples(pending.batches)
        record = {
            "event": "skipped",
            "step": pending.step,
            "loss": loss,
            "gradient_norm": norm,
            "examples": examples,
        }
        if overflow:
            record |= {"event": "overflow", "loss_scale": scaler.scale.item()}
            what = "fp16 gradients overflowed; the loss scale was halved"
            shown = ""
        else:
            what = "loss or gradient is not finite"
            shown = "".join("\n    " + " ⇒ ".join(_texts(example)) for example in examples)
        # An overflow is normal while the loss scale still has room to fall.
        if not (overflow and scaler.scale.item() >= 1):
            self.progress.bad += 1
        if self.progress.bad >= MAX_SKIPPED_UPDATES:
            with self.strategy.evaluated(None), self._autocast():
                if self.ranks.is_main:
                    record["origin"] = self.monitor.origin(pending.batches)
        self.metrics.write(record)
        self.progress_bar.say(
            f"step {pending.step}: {what}; update skipped "
            f"(loss {loss}, gradient norm {norm}){shown}"
        )
        if self.progress.bad >= MAX_SKIPPED_UPDATES:
            raise DivergenceError(
                f"loss or gradients were not finite {MAX_SKIPPED_UPDATES} steps in a row, "
                f"last at step {pending.step}",
                "lower learning_rate, set clip = 1.0 or a longer warmup; "
                "metrics.jsonl names the batches",
            )

    def _examples(self, batches: list[Batch]) -> list[dict[str, Any]]:
        rows = [int(row) for batch in batches for row in batch.rows]
        examples = self.objective.examples(rows[:EXAMPLES_IN_A_REPORT])
        more = len(rows) - EXAMPLES_IN_A_REPORT
        if more > 0:
            examples = [*examples, {"row": -1, "text": f"… {more} more"}]
        return examples

    # --- torch.compile ----------------------------------------------------------------------------

    @property
    def compiles(self) -> bool:
        return self.settings.compile and self.device.type == "cuda"

    @contextmanager
    def _compiled(self) -> Iterator[None]:
        if not self.compiles:
            yield
            return
        self.progress_bar.say("compiling the blocks: the first steps take longer")
        with compiled(self.model):
            yield

    def _warm_up(self) -> None:
        """Compiles what only validation needs before the first step, and counts that time apart."""
        if not self.compiles:
            return
        self._evaluate()
        self.progress.compiling += time.perf_counter() - self._clock

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

    def _say(self, text: str) -> None:
        self.progress_bar.say(text)

    def _say_estimate(self) -> None:
        """Says before the first step how long the run will take: one batch is tried and undone."""
        remaining = self.settings.steps - self.progress.step
        # A compiled step is not known before, and one that carries state cannot be tried.
        # Nor is what the ranks say to each other.
        unknown = self.compiles or isinstance(self.objective, CarriesState) or self.ranks.several
        if remaining < STEPS_WORTH_AN_ESTIMATE or unknown:
            return
        seconds = self._trial_seconds() * self.settings.accumulate
        self.progress_bar.say(
            f"estimate: {duration(seconds * remaining)} for {remaining:,} steps "
            f"of {seconds:.2g} s, and validation"
        )

    def _trial_seconds(self) -> float:
        """The seconds of the forward and backward pass of one batch."""
        batches = self.objective.batches(self.progress.epoch, self.progress.index)
        _, batch = next(iter(batches))
        tensors = batch.to(self.device).tensors
        self.model.train()
        seconds = 0.0
        # The first pass also allocates memory and chooses kernels; a slow model is tried once.
        for _ in range(2):
            started = time.perf_counter()
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
        return seconds

    # --- logging and validation -------------------------------------------------------------------

    def _update_clock(self) -> float:
        """Adds the time since the last call to the seconds of training."""
        now = time.perf_counter()
        self.progress.seconds += now - self._clock
        self._clock = now
        return self.progress.seconds

    def _log(self) -> None:
        self._inspect()
        progress = self.progress
        loss, nll, tokens = self.window.tolist()  # waits for the device
        self.window.zero_()
        seconds = self._update_clock()
        new_tokens = progress.tokens - self._logged_tokens
        rate = new_tokens / max(1e-9, seconds - self._logged_seconds)
        self._logged_seconds = seconds
        self._logged_tokens = progress.tokens
        mean_loss = loss / max(1.0, tokens)
        unit = self.objective.unit
        record = {
            "step": progress.step,
            "loss": mean_loss,
            "nll": nll / max(1.0, tokens),
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
        self._inspect()
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
        self._say_validation(validation, improved)
        if progress.finished:
            self.progress_bar.say(
                f"no improvement in {progress.stale} validations: stopping at step {progress.step}"
            )
        self._update_clock()

    def _say_validation(self, validation: dict[str, Any], improved: bool) -> None:
        numbers = [f"{key} {v:.3f}" for key, v in validation.items() if isinstance(v, float)]
        mark = "  (best)" if improved else ""
        say = self.progress_bar.say
        say(f"step {self.progress.step}  validation: {'  '.join(numbers)}{mark}")
        for sample in validation.get("samples", []):
            lines = [_shortened(text) for text in _texts(sample)[:2]]
            say("    " + "\n    ⇒ ".join(lines))

    def _evaluate(self) -> dict[str, Any] | None:
        # Validation comes rarely: compiling kernels of its own would not pay.
        eager: AbstractContextManager[Any] = nullcontext()
        if self.compiles:
            eager = torch.compiler.set_stance("force_eager")
        # The EMA is what will be exported, so it is what is validated.
        with eager, self._evaluated(self.averaging.full_ema()), warnings.catch_warnings():
            # Unknown words of the data were counted when it was prepared.
            warnings.simplefilter("ignore", RegardWarning)
            validation = None
            if self.ranks.is_main:
                validation = self.strategy.evaluation.validate(self._autocast())
        return self.ranks.broadcast(validation)

    def _evaluated(self, weights: Tensors | None) -> AbstractContextManager[None]:
        """These full weights in the model that is evaluated; None: those that are trained."""
        return self.strategy.evaluated(weights, self.progress.step)

    # --- checkpoints ------------------------------------------------------------------------------

    def save(self) -> None:
        """Commits a checkpoint of everything the next step depends on."""
        self._inspect()
        self._update_clock()
        progress = self.progress
        loss, nll, tokens = self.window.tolist()
        progress.window = (loss, nll, tokens)
        # A resumed run truncates its log to here, and writes the same lines again.
        progress.metrics_position = self.metrics.position()
        groups = {"weights": self.averaging.current(), "optimizer": self.optimizer.state()}
        if self.averaging.ema is not None:
            groups["ema"] = self.averaging.ema
        if isinstance(self.objective, CarriesState):
            groups["carry"] = self.objective.carry
        self._write(progress.step, groups)
        # After the checkpoint: a failed export loses no training.
        with self.exported():
            if self.after_save is not None and self.ranks.is_main:
                self.after_save()
        self._update_clock()

    def _write(self, step: int, groups: dict[str, Tensors]) -> None:
        """Writes what this rank has of a checkpoint; the main rank commits it."""
        if self.ranks.is_main:
            self.checkpoints.save(step, groups, asdict(self.progress))
            self._delete_unused_snapshots()

    def _delete_unused_snapshots(self) -> None:
        # Any checkpoint on disk may be the one to resume from, so the snapshots of all stay.
        used: set[int] = set()
        for progress in self.checkpoints.progresses():
            used |= {progress["best_step"], *progress["averaged"]}
        self.snapshots.delete_all_but(used)

    def restore(self, saved: Saved) -> None:
        """Resumes from a checkpoint: weights, optimizer, averages, position, log and threads."""
        self.progress = Progress(**saved.progress)
        self.progress.window = tuple(saved.progress["window"])  # JSON has lists only
        # As many as before: the order of sums on a CPU depends on it.
        torch.set_num_threads(self.progress.threads)
        # Of the full tensors, what this rank holds.
        groups = {group: self.strategy.parts(each) for group, each in saved.groups.items()}
        self.averaging.assign(groups["weights"])
        self.optimizer.load(groups["optimizer"])
        if self.averaging.ema is not None:
            for name, average in self.averaging.ema.items():
                average.copy_(groups["ema"][name])
        if isinstance(self.objective, CarriesState):
            for name, tensor in saved.groups["carry"].items():
                self.objective.carry[name].copy_(tensor)
        self.window = torch.tensor(self.progress.window, dtype=torch.float64, device=self.device)
        self.metrics.truncate(self.progress.metrics_position)

    @contextmanager
    def exported(self) -> Iterator[None]:
        """The weights to export in the model, for the duration of the block."""
        with self._evaluated(self.averaging.selected(self.progress)):
            yield


def _shortened(text: str) -> str:
    """A sample on one line of a terminal; the metrics log has all of it."""
    line = " ".join(text.split())
    return line if len(line) <= SAMPLE_WIDTH else line[: SAMPLE_WIDTH - 1] + "…"


def _texts(example: dict[str, Any]) -> list[str]:
    """The texts of an example or a sample, in their order."""
    return [value for value in example.values() if isinstance(value, str)]


def _compiled_graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
