"""Values that are not finite, at a hundred places: each update is skipped, its examples named."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from regard.core.linear import Linear
from regard.data.batching import Batch
from regard.system.errors import DivergenceError
from regard.training.engine.loop import Loop
from regard.training.entry_points import train
from regard.training.objectives.causal_lm import CausalLM

PLACES = 100
STEPS = 2 * PLACES + 4  # every second update: three in a row would end the run
BAD_NUMBERS = (math.nan, math.inf, -math.inf)
SETTINGS: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 2, "layers": 2, "dropout": 0.1,
    "batch_tokens": 48, "context": 16, "tokenizer": "characters", "steps": STEPS, "warmup_steps": 10,
    "validate_every": 1000, "save_every": 1000, "log_every": 50, "samples": 0, "threads": 1,
    "learning_rate": 0.001, "device": "cpu",
}  # fmt: skip


class Poisoned(CausalLM):
    """Values of some batches, and of the loss of some updates, are not finite."""

    bad_batches: ClassVar[dict[int, float]] = {}  # by their index in the first epoch
    bad_loss: ClassVar[float | None] = None  # of the update to come

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for after, batch in super().batches(epoch, index):
            # A number that comes with the data, as pixels and samples do.
            batch.tensors["factor"] = torch.tensor(self.bad_batches.get(after[1] - 1, 1.0))
            yield after, batch

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        others = {name: tensor for name, tensor in tensors.items() if name != "factor"}
        loss, nll = super().loss(others)
        if self.model.training and self.bad_loss is not None:
            loss = loss * self.bad_loss
        return loss * tensors.get("factor", torch.ones(())), nll


class Injection:
    """Puts a bad number into a gradient, an activation or the loss of the next update."""

    def __init__(self, plan: Mapping[int, str], seed: int) -> None:
        self.plan = plan  # step → where
        self.chance = random.Random(seed)
        self.remove: Callable[[], None] = lambda: None
        self.called: list[Linear] = []  # modules that a forward pass calls as such

    def __call__(self, loop: Loop) -> None:
        self.remove()
        self.remove = lambda: None
        Poisoned.bad_loss = None
        if loop.progress.step == 1:
            self._note_called(loop)
        number = self.chance.choice(BAD_NUMBERS)
        match self.plan.get(loop.progress.step + 1):
            case "loss":
                Poisoned.bad_loss = number
            case "gradient":
                parameter = self.chance.choice(list(loop.model.parameters()))
                self.remove = parameter.register_hook(lambda g: self._spoiled(g, number)).remove
            case "activation":
                # −∞ before a ReLU is a plain zero after it: only NaN always reaches the loss.
                module = self.chance.choice(self.called)
                handle = module.register_forward_hook(
                    lambda module, inputs, out: self._spoiled(out, math.nan)
                )
                self.remove = handle.remove

    def _note_called(self, loop: Loop) -> None:
        hooks = ExitStack()
        for module in loop.model.modules():
            if isinstance(module, Linear):
                note = lambda module, inputs, out: self.called.append(module)  # noqa: E731
                hooks.callback(module.register_forward_hook(note).remove)
        self.remove = hooks.close

    def _spoiled(self, tensor: Tensor, number: float) -> Tensor:
        spoiled = tensor.clone().reshape(-1)
        spoiled[self.chance.randrange(spoiled.numel())] = number
        return spoiled.view(tensor.shape)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{i} and {i * i % 97} make {i + i * i % 97}.\n" for i in range(600)))
    return path


def test_a_hundred_places(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)
    plan = {
        step: chance.choice(("loss", "gradient", "activation", "data"))
        for step in range(3, 3 + 2 * PLACES, 2)
    }
    bad_batches = {
        step - 1: chance.choice(BAD_NUMBERS) for step, place in plan.items() if place == "data"
    }
    monkeypatch.setattr(Poisoned, "bad_batches", bad_batches)
    rows: dict[int, list[int]] = {}  # of each update, as the objective hands them out

    def on_step(loop: Loop) -> None:
        if not rows:
            batches = itertools.islice(loop.objective.batches(0, 0), STEPS)
            for step, (_, batch) in enumerate(batches, start=1):
                rows[step] = [int(row) for row in batch.rows]
        injection(loop)

    injection = Injection(plan, seed=1)
    train(
        SETTINGS | {"text": str(text)},
        objective=Poisoned,
        out=tmp_path / "run",
        on_step=on_step,
    )
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    skipped = [line for line in lines if line.get("event") == "skipped"]
    assert [line["step"] for line in skipped] == sorted(plan)
    assert len(skipped) == PLACES
    for line in skipped:
        assert line["rows"] == rows[line["step"]]
        assert line["examples"][0]["row"] == line["rows"][0]
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.parametrize("state", ["exp_avg", "exp_avg_sq"])
def test_a_bad_number_in_the_optimizer_is_left_by_a_roll_back(
    text: Path, tmp_path: Path, state: str
) -> None:
    """It spoils the weights, so that no later update is finite: the run ends, or goes back."""
    done: list[int] = []

    def spoil(loop: Loop) -> None:
        if loop.progress.step == 40 and not done:
            done.append(1)
            _, parameter = loop.optimizer.named[0]
            loop.optimizer.adam.state[parameter][state].view(-1)[0] = math.nan

    settings = SETTINGS | {"text": str(text), "steps": 60, "save_every": 10}
    with pytest.raises(DivergenceError, match="not finite"):
        train(settings, objective=Poisoned, out=tmp_path / "ends", on_step=spoil)
    done.clear()
    settings |= {"spike_threshold": 50.0, "rollback_steps": 8}
    result = train(settings, objective=Poisoned, out=tmp_path / "goes on", on_step=spoil)
    assert result.steps == 60
    weights = load_file(tmp_path / "goes on" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())
