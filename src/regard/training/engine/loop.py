"""The training loop: batches in, updates out, and at any moment enough on disk to go on bit for bit."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.checkpoint import Checkpoints, Saved, Snapshots, Tensors
from regard.core.linear_attention import redraw
from regard.data.batching import Batch, prefetch
from regard.edit import compiled
from regard.errors import DivergenceError
from regard.training.engine.logging import MetricsLog, ProgressLog
from regard.training.engine.optimizer import Optimizer
from regard.training.engine.step import Step
from regard.training.objectives.objective import CarriesState, Objective
from regard.training.recipe.options import Average, Best, Ema, Last
from regard.training.recipe.schema import Recipe

BAD_STEPS_IN_A_ROW = 3


@dataclass
class Progress:
    """Where a run stands; plain data that is saved with every checkpoint."""

    step: int = 0
    epoch: int = 0
    index: int = 0  # the next batch of the epoch
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # validations since the best one
    averaged: list[int] = field(default_factory=list)
    bad: int = 0  # updates skipped in a row
    finished: bool = False
    window: tuple[float, float, float] = (
        0.0,
        0.0,
        0.0,
    )  # loss, −log p and tokens since the last line of the log
    metrics_position: int = 0
    compiling: float = 0.0  # seconds of them in which programs were compiled and recorded
    threads: int = 0


class Interrupted(Exception):
    """A signal asked the run to stop; the state is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Loop:
    """One run. Everything it does between two checkpoints follows from the first of them."""

    def __init__(
        self,
        recipe: Recipe,
        task: Objective,
        updater: Optimizer,
        stores: tuple[Checkpoints, Snapshots],
        metrics: MetricsLog,
        talk: ProgressLog,
    ) -> None:
        self.settings = recipe.train
        self.kept = recipe.kept_weights
        self.task, self.model, self.updater = task, task.model, updater
        self.step = Step(task.loss, updater, self._autocast, record=not self.settings.recompute)
        self.checkpoints, self.snapshots = stores
        self.metrics, self.talk = metrics, talk
        self.progress = Progress(threads=torch.get_num_threads())
        self.device = next(self.model.parameters()).device
        self.parameters = dict(self.model.named_parameters())
        self.ema = (
            {n: p.detach().clone() for n, p in self.parameters.items()}
            if isinstance(self.kept, Ema)
            else None
        )
        self.window = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.unread: tuple[int, list[Batch], Tensor] | None = None
        self.norm = 0.0  # of the last gradient, before clipping
        self.signal = 0
        self.clock = time.perf_counter()
        self.after_save: Callable[[], None] = lambda: (
            None
        )  # called with the selected weights in the model
        self.logged = (0.0, 0)  # seconds and tokens at the last line of the log

    # -------------------------------------------------------------- the run

    def run(self) -> None:
        """Trains to the last step, or until patience ends, or until a signal; the state is saved in every case."""
        progress, settings = self.progress, self.settings
        self.logged = (progress.seconds, progress.tokens)
        with self._signals(), self._compiled(), closing(self._batches()) as batches:
            self.talk.start(progress.step)
            try:
                self.clock = time.perf_counter()
                self._warm_up()
                while progress.step < settings.steps and not progress.finished:
                    self._step(list(itertools.islice(batches, settings.accumulate)))
                    self._after_step()
            finally:
                self.talk.stop()

    @contextmanager
    def _compiled(self) -> Iterator[None]:
        if not self.compiles:
            yield
            return
        self.talk.say("compiling the blocks: the first steps take longer")
        with compiled(self.model):
            yield

    @property
    def compiles(self) -> bool:
        return self.settings.compile and self.device.type == "cuda"

    def _warm_up(self) -> None:
        """Kernels that only validation needs are compiled before the first step, with the time of compiling."""
        if not self.compiles:
            return
        self._measured()
        self.progress.compiling += time.perf_counter() - self.clock

    def _after_step(self) -> None:
        progress, settings = self.progress, self.settings
        last = progress.step == settings.steps
        if progress.step % settings.log_every == 0 or last:
            self._log()
        if progress.step % settings.validate_every == 0 or last:
            self._validate()
            last = last or progress.finished
        if progress.step % settings.save_every == 0 or last or self.signal:
            self.save()
        if self.signal and not last:
            raise Interrupted(self.signal)

    def _batches(self) -> Generator[Batch, None, None]:
        def prepared() -> Iterator[tuple[tuple[int, int], Batch]]:
            for position, batch in self.task.batches(self.progress.epoch, self.progress.index):
                yield position, batch.pin() if self.device.type == "cuda" else batch

        with closing(prefetch(prepared())) as ready:
            for position, batch in ready:
                self.progress.epoch, self.progress.index = position
                yield batch

    # -------------------------------------------------------------- one step

    def _step(self, batches: list[Batch]) -> None:
        progress = self.progress
        tokens = sum(batch.tokens for batch in batches)
        progress.step += 1
        self.model.train()
        redraw(self.model, progress.step)
        with self._watched():
            verdict = self.step(batches, progress.step, self.settings.seed)
        skipped, _, loss, nll = verdict.unbind()
        counted = torch.stack([loss, nll, self.step.tokens])
        self.window += torch.where(skipped.bool(), 0.0, counted)
        if self.ema is not None:
            assert isinstance(self.kept, Ema)
            torch._foreach_lerp_(
                list(self.ema.values()),
                [p.detach() for p in self.parameters.values()],
                1 - self.kept.decay,
            )
        progress.tokens += tokens
        # The device is left to work: what it says of this step is read when the next one has been handed over.
        self._inspect()
        self.unread = (progress.step, batches, verdict)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Counts the time of a step as spent on compiling if anything was compiled or recorded in it."""
        if not self.compiles:
            yield
            return
        known, began = _programs(), time.perf_counter()
        yield
        if _programs() > known or not self.step.ready:
            torch.cuda.synchronize()
            self.progress.compiling += time.perf_counter() - began

    def _autocast(self) -> AbstractContextManager[Any]:
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
        if self.settings.precision not in kinds:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=kinds[self.settings.precision])

    def _inspect(self) -> None:
        """Reads the verdict on the step before; a bad one is reported with its examples, and repeated ones end the run."""
        if self.unread is None:
            return
        step, batches, verdict = self.unread
        self.unread = None
        skipped, norm, loss, _ = verdict.tolist()
        self.norm = norm
        if not skipped:
            self.progress.bad = 0
            return
        overflow = self.updater.loss_scaling and loss == loss and abs(loss) != float("inf")
        examples = self._examples(batches)
        record = {
            "event": "skipped",
            "step": step,
            "loss": loss,
            "gradient_norm": norm,
            "examples": examples,
        }
        if overflow:
            record |= {"event": "overflow", "loss_scale": self.updater.scale.item()}
        self.metrics.write(record)
        what = (
            "fp16 gradients overflowed; the loss scale was halved"
            if overflow
            else "loss or gradient is not finite"
        )
        shown = "" if overflow else "".join("\n    " + " ⇒ ".join(_words(e)) for e in examples)
        self.talk.say(
            f"step {step}: {what}; update skipped (loss {loss}, gradient norm {norm}){shown}"
        )
        self.progress.bad += 0 if overflow and self.updater.scale.item() >= 1 else 1
        if self.progress.bad >= BAD_STEPS_IN_A_ROW:
            raise DivergenceError(
                f"loss or gradients were not finite {BAD_STEPS_IN_A_ROW} steps in a row, last at step {step}",
                "lower learning_rate, set clip = 1.0 or a longer warmup; metrics.jsonl names the batches",
            )

    def _examples(self, batches: list[Batch], most: int = 3) -> list[dict[str, Any]]:
        rows = [int(row) for batch in batches for row in batch.rows]
        more = [{"row": -1, "text": f"… {len(rows) - most} more"}] if len(rows) > most else []
        return self.task.examples(rows[:most]) + more

    # -------------------------------------------------------------- between steps

    def _tick(self) -> float:
        now = time.perf_counter()
        self.progress.seconds += now - self.clock
        self.clock = now
        return self.progress.seconds

    def _log(self) -> None:
        self._inspect()
        progress = self.progress
        loss, nll, tokens = self.window.tolist()
        self.window.zero_()
        seconds = self._tick()
        rate = (progress.tokens - self.logged[1]) / max(1e-9, seconds - self.logged[0])
        self.logged = (seconds, progress.tokens)
        self.metrics.write(
            {
                "step": progress.step,
                "loss": loss / max(1.0, tokens),
                "nll": nll / max(1.0, tokens),
                "gradient_norm": self.norm,
                "learning_rate": self.updater.schedule(progress.step),
                "epoch": progress.epoch,
                "tokens": progress.tokens,
                "seconds": round(seconds, 3),
                "tokens_per_second": round(rate, 1),
                "unit": self.task.unit,  # of what the names above call tokens
            }
        )
        left = (
            (seconds - progress.compiling) / progress.step * (self.settings.steps - progress.step)
        )
        self.talk.step(progress.step, loss / max(1.0, tokens), rate, self.task.unit, seconds, left)

    def _validate(self) -> None:
        self._inspect()
        progress, settings = self.progress, self.settings
        found = self._measured()
        if found is None:
            return
        score = found["loss"] if settings.metric == "loss" else found[settings.metric]
        better = progress.best is None or (
            score < progress.best if settings.metric == "loss" else score > progress.best
        )
        if better:
            progress.best, progress.best_step, progress.stale = score, progress.step, 0
        else:
            progress.stale += 1
        if isinstance(self.kept, Average):
            progress.averaged = [*progress.averaged, progress.step][-self.kept.count :]
        if isinstance(self.kept, Average) or (better and isinstance(self.kept, Best)):
            self.snapshots.write(progress.step, self._current())
        self.metrics.write({"event": "validation", "step": progress.step, **found, "best": better})
        shown = "  ".join(
            f"{key} {value:.3f}" for key, value in found.items() if isinstance(value, float)
        )
        self.talk.say(f"step {progress.step}  validation: {shown}{'  (best)' if better else ''}")
        for sample in found.get("samples", []):
            self.talk.say("    " + "\n⇒ ".join(_words(sample)[:2]).replace("\n", "\n    "))
        if settings.patience and progress.stale >= settings.patience:
            progress.finished = True
            self.talk.say(
                f"no improvement in {progress.stale} validations: stopping at step {progress.step}"
            )
        self._tick()

    def _measured(self) -> dict[str, Any] | None:
        # What is only measured now and then is not worth a program of its own.
        plain = torch.compiler.set_stance("force_eager") if self.compiles else nullcontext()
        with plain, self._weights(self.ema):
            return self.task.validate(self._autocast())

    # -------------------------------------------------------------- state

    def save(self) -> None:
        """Commits a checkpoint of everything the next step depends on."""
        self._inspect()
        self._tick()
        progress = self.progress
        loss, nll, tokens = self.window.tolist()
        progress.window = (loss, nll, tokens)
        progress.metrics_position = self.metrics.position()
        groups = {"weights": self._current(), "optimizer": self.updater.state()}
        if self.ema is not None:
            groups["ema"] = self.ema
        if isinstance(self.task, CarriesState):
            groups["carry"] = self.task.carry
        self.checkpoints.save(progress.step, groups, asdict(progress))
        kept = self.checkpoints.progresses()
        self.snapshots.forget_all_but(
            {step for saved in kept for step in (saved["best_step"], *saved["averaged"])}
        )
        with self.exported():
            self.after_save()
        self._tick()

    def restore(self, saved: Saved) -> None:
        """Takes up a checkpoint: weights, optimizer, averages, position, log and threads."""
        self.progress = Progress(**saved.progress)
        self.progress.window = tuple(saved.progress["window"])
        torch.set_num_threads(self.progress.threads)
        self._assign(saved.groups["weights"])
        self.updater.load(saved.groups["optimizer"])
        if self.ema is not None:
            self.ema = {name: saved.groups["ema"][name].to(self.device) for name in self.parameters}
        if isinstance(self.task, CarriesState):
            for name, part in saved.groups["carry"].items():
                self.task.carry[name].copy_(part)
        self.window = torch.tensor(self.progress.window, dtype=torch.float64, device=self.device)
        self.metrics.cut(self.progress.metrics_position)

    def selected(self) -> Tensors:
        """The weights the recipe keeps, as far as the run has come."""
        match self.kept:
            case Ema() if self.ema is not None:
                return self.ema
            case Average() if self.progress.averaged:
                return self.snapshots.mean(self.progress.averaged)
            case Best() if self.progress.best_step:
                return self.snapshots.mean([self.progress.best_step])
            case Last() | _:
                return self._current()

    def _current(self) -> Tensors:
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def _assign(self, weights: Tensors) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])

    @contextmanager
    def _weights(self, weights: Tensors | None) -> Iterator[None]:
        """Other weights in the model for a while."""
        if weights is None:
            yield
            return
        own = {name: tensor.clone() for name, tensor in self._current().items()}
        self._assign(weights)
        try:
            yield
        finally:
            self._assign(own)

    @contextmanager
    def exported(self) -> Iterator[None]:
        """The selected weights in the model for a while."""
        with self._weights(self.selected()):
            yield

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM lets the step finish and the state be saved; a second one is not waited for."""

        def remember(number: int, _: Any) -> None:
            if self.signal:
                signal.signal(number, signal.SIG_DFL)
            self.signal = number
            self.talk.say(f"{signal.Signals(number).name}: finishing the step and saving")

        try:
            before = {
                number: signal.signal(number, remember)
                for number in (signal.SIGINT, signal.SIGTERM)
            }
        except ValueError:  # not the main thread: the caller's signals are not ours
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _words(example: dict[str, Any]) -> list[str]:
    """What an example or a sample says, in its order."""
    return [value for value in example.values() if isinstance(value, str)]


def _programs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
