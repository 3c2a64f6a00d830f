"""The source of trajectories: windows of episodes; one begins at every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.frontends.trajectories import TOKENS
from regard.data.batching import Batch, Rows, batch_indices
from regard.data.generated.environments import episodes
from regard.data.padding import IGNORED
from regard.data.trajectories import (
    PROCESSOR_FILE,
    Inputs,
    Trajectory,
    TrajectoryProcessor,
    read_trajectories,
    write_trajectories,
)
from regard.models import Policy
from regard.training.data.labelled_text import in_order_of_writing, splits_of_files, with_held_out
from regard.training.data.source import Position, Source
from regard.training.setup import Setup, Split

EPISODES = 400  # that are generated to train on
HELD_OUT = 32  # to validate, and as many to test


@dataclass(frozen=True)
class StoredTrajectories:
    """The episodes of each split, and how a model reads them."""

    sets: dict[str, list[Trajectory]]
    processor: TrajectoryProcessor


def stored_trajectories(
    setup: Setup, processor: TrajectoryProcessor | None = None
) -> StoredTrajectories:
    """The episodes of a run, stored in its folder on the first call; `processor` is that of a model
    to fine-tune."""
    folder = setup.run_folder.data
    if not (folder / "train.npz").exists():
        splits = with_held_out(setup.splits(_splits))
        for name, split in in_order_of_writing(splits, folder):
            write_trajectories(folder / f"{name}.npz", list(split()))
    sets = {path.stem: read_trajectories(path) for path in sorted(folder.glob("*.npz"))}
    data = setup.recipe.data
    if processor is None:
        processor = TrajectoryProcessor.of(
            sets["train"],
            context=setup.recipe.steps_read,
            conditioned=data.condition_on_returns,
            environment=_environment(setup),
        )
    return StoredTrajectories(sets, processor)


def _environment(setup: Setup) -> str | None:
    """The environment of a recipe; without files, the first there is."""
    data = setup.recipe.data
    return data.environment or ("cartpole" if not setup.recipe.files else None)


def _splits(setup: Setup) -> Mapping[str, Split]:
    """The episodes of the files that a recipe names, and those that it generates."""
    data = setup.recipe.data
    name = _environment(setup)
    files = splits_of_files(read_trajectories, setup)
    if name is None:
        return files
    wanted = data.builtin_lines if "builtin_lines" in data.model_fields_set else 0
    train = files.pop("train", None)
    count = wanted or (0 if train else EPISODES)

    def all_episodes() -> Iterator[Any]:
        yield from train() if train else ()
        yield from episodes(name, count)

    # Other seeds: of policies of every grade, whatever the files hold.
    held_out = data.test_lines or HELD_OUT
    generated: dict[str, Split] = {
        "valid": lambda: iter(episodes(name, held_out, seed=1)),
        "test": lambda: iter(episodes(name, held_out, seed=2)),
    }
    return {"train": all_episodes, **generated, **files}


@dataclass(frozen=True)
class AllSteps:
    """The steps of all episodes, one after the other."""

    inputs: Inputs
    ends: NDArray[np.int64]  # behind the last step of the episode of each
    choices: NDArray[np.int64] | None  # their actions, where these are choices

    @classmethod
    def of(cls, processor: TrajectoryProcessor, episodes: list[Trajectory]) -> AllSteps:
        parts = [processor.inputs(one, slice(None)) for one in episodes]
        lengths = [len(one) for one in episodes]
        actions = np.concatenate([one.actions for one in episodes])
        return cls(
            {name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
            np.repeat(np.cumsum(lengths), lengths),
            actions if processor.choices else None,
        )


class Episodes(Source):
    """Windows of episodes, one from every step on: the number of a window is that of a step."""

    unit = "episodes"
    model_class = Policy
    model: Policy
    data: StoredTrajectories

    def __init__(self, model: Policy, data: StoredTrajectories, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.length = data.processor.context
        self.splits = data.sets
        self.steps = {split: AllSteps.of(data.processor, sets) for split, sets in data.sets.items()}

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> StoredTrajectories:
        return stored_trajectories(setup, None if base is None else base.processor)

    @classmethod
    def wrap(
        cls, model: Any, description: Any, config: dict[str, Any], data: StoredTrajectories
    ) -> Policy:
        policy = Policy(model, description, config)
        policy.processor = data.processor
        return policy

    @classmethod
    def files(cls, model: Any, setup: Setup) -> dict[str, dict[str, Any]]:
        return {"config.json": model.config, PROCESSOR_FILE: model.processor.to_config()}

    def lengths(self, split: str) -> NDArray[Any]:
        return np.full((len(self.steps[split].ends), 1), TOKENS * self.length)

    def evaluation_rows(self, split: str) -> list[Rows]:
        # One window behind the other, so that each step is in one of them.
        rows = np.flatnonzero(self.steps[split].inputs["timesteps"] % self.length == 0)
        budget = self.evaluation_factor * self.settings.batch_tokens
        lengths = self.lengths(split)[rows]
        batches = batch_indices(lengths, budget, seed=0, epoch=0, shuffle=False)
        return [rows[one] for one in batches]

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        all_steps = self.steps[split]
        ends = all_steps.ends[rows][:, None]
        steps = rows[:, None] + np.arange(self.length)  # [B, L]
        is_step = steps < ends
        # What is behind the end is read by nothing before it: only the loss needs a mask.
        steps = np.minimum(steps, ends - 1)
        arrays = {name: values[steps] for name, values in all_steps.inputs.items()}
        if all_steps.choices is not None:
            arrays["labels"] = np.where(is_step, all_steps.choices[steps], IGNORED)
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
        tensors["is_step"] = torch.from_numpy(is_step)
        return Batch(tensors, int(is_step.sum()), rows)

    def describe(self) -> str:
        lines = []
        for name, of_split in self.splits.items():
            returns = np.array([one.total for one in of_split])
            steps = len(self.steps[name].ends)
            lines.append(
                f"{name}: {len(of_split):,} episodes, {steps:,} steps, returns "
                f"{returns.min():.0f} to {returns.max():.0f}, mean {returns.mean():.1f}"
            )
        return "\n".join(lines)

    def example(self, row: int) -> dict[str, Any]:
        all_steps = self.steps["train"]
        step = all_steps.inputs["timesteps"][row]
        episode = (all_steps.inputs["timesteps"][: row + 1] == 0).sum() - 1
        return {"text": f"episode {episode} from step {step} on"}
