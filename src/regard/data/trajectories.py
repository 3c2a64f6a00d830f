"""Trajectories: episodes of states, actions and rewards (.npz), and how a model reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.file_access import read_arrays, split_location, write_arrays
from regard.system.disk import read_json_object
from regard.system.errors import DataError

PROCESSOR_FILE = "preprocessor_config.json"
_PROCESSOR_TYPE = "TrajectoryProcessor"
_ARRAYS = ("obs", "acts", "rews", "indices")
_REPAIR = "give arrays obs, acts, rews, and indices: the first step of each episode but the first"


@dataclass(frozen=True, eq=False)
class Trajectory:
    """An episode of T steps."""

    states: NDArray[np.float32]  # [T + 1, S]: before each action, and at the end
    actions: NDArray[Any]  # [T] whole numbers, where they are choices; otherwise [T, A]
    rewards: NDArray[np.float32]  # [T]

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def returns_to_go(self) -> NDArray[np.float64]:
        """The sum of the rewards from each step on: [T]."""
        return np.cumsum(self.rewards[::-1], dtype=np.float64)[::-1]

    @property
    def total(self) -> float:
        """The return: the sum of all rewards."""
        return float(self.rewards.sum(dtype=np.float64))

    @property
    def chooses(self) -> bool:
        """Whether actions are choices, and no numbers."""
        return self.actions.ndim == 1


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """The episodes of an .npz file with the arrays of the imitation library: obs, acts, rews, and
    the indices at which the actions of a new episode begin.

    `FILE.npz:NUMBER` is one of them, counted from 0. Several files have commas between them.
    """
    return [one for part in split_location(str(path)) for one in _read_file(part)]


def _read_file(path: str) -> list[Trajectory]:
    match = re.fullmatch(r"(.+):(\d+)", path)
    file, number = (path, None) if match is None or Path(path).exists() else match.groups()
    arrays = read_arrays(Path(file), _REPAIR, _ARRAYS)
    obs, acts, rews, indices = (arrays[name] for name in _ARRAYS)
    count = len(indices) + 1
    fits = obs.ndim == 2 and acts.ndim in (1, 2) and rews.ndim == 1 and len(rews) == len(acts)
    ends = np.array([0, *indices, len(acts)])
    fits = fits and len(obs) == len(acts) + count and bool((np.diff(ends) > 0).all())
    numbers = [obs, rews] if acts.dtype.kind in "iu" else [obs, rews, acts]
    if not fits or not all(np.isfinite(one).all() for one in numbers):
        raise DataError(
            f"the arrays of {file} do not fit each other: obs {obs.shape}, acts {acts.shape}, "
            f"rews {rews.shape}, {count} episodes; or they are no finite numbers",
            "give an observation for each action, and one more for the end of each episode",
        )
    if number is not None and int(number) >= count:
        raise DataError(
            f"{file} has no episode {number}: there are {count}", f"use 0 to {count - 1}"
        )
    chosen = range(count) if number is None else [int(number)]
    return [
        Trajectory(
            # The final observation of each episode before this one is a row more.
            obs[ends[i] + i : ends[i + 1] + i + 1].astype(np.float32),
            acts[ends[i] : ends[i + 1]],
            rews[ends[i] : ends[i + 1]].astype(np.float32),
        )
        for i in chosen
    ]


def write_trajectories(path: Path, episodes: Sequence[Trajectory], **more: Any) -> None:
    """A file of episodes, as `read_trajectories` reads it."""
    arrays = {
        "obs": np.concatenate([one.states for one in episodes]),
        "acts": np.concatenate([one.actions for one in episodes]),
        "rews": np.concatenate([one.rewards for one in episodes]),
        "indices": np.cumsum([len(one) for one in episodes])[:-1],
    }
    write_arrays(path, {**arrays, **more})


# ------------------------------------------------------------------ as a model reads them

Inputs = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class TrajectoryProcessor:
    """How episodes become the numbers that a model reads, and its outputs actions."""

    mean: tuple[float, ...]  # of each number of a state
    std: tuple[float, ...]
    choices: int  # actions to choose from, one-hot; 0: actions are numbers
    action_scale: float  # the largest number of an action
    return_scale: float  # the largest size of a return
    best: float  # return of the training data: what is asked for by default
    context: int  # steps that are read
    conditioned: bool = True  # on the return-to-go; otherwise it is 0: behaviour cloning
    environment: str | None = None  # in which it can act

    @classmethod
    def of(cls, episodes: Sequence[Trajectory], **more: Any) -> TrajectoryProcessor:
        """The statistics of training episodes."""
        states = np.concatenate([one.states for one in episodes]).astype(np.float64)
        actions = np.concatenate([one.actions for one in episodes])
        returns = np.concatenate([one.returns_to_go for one in episodes])
        chooses = episodes[0].chooses
        return cls(
            mean=tuple(states.mean(axis=0).tolist()),
            std=tuple(np.maximum(states.std(axis=0), 1e-6).tolist()),
            choices=int(actions.max()) + 1 if chooses else 0,
            action_scale=1.0 if chooses else float(np.abs(actions).max()) or 1.0,
            return_scale=float(np.abs(returns).max()) or 1.0,
            best=max(one.total for one in episodes),
            **more,
        )

    def states(self, states: NDArray[Any]) -> NDArray[np.float32]:
        """Standardized states."""
        return ((states - np.array(self.mean)) / np.array(self.std)).astype(np.float32)

    def actions(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """Actions one-hot, or as shares of the largest: [..., A]."""
        if self.choices:
            return np.eye(self.choices, dtype=np.float32)[actions]
        return (actions / self.action_scale).astype(np.float32)

    def returns(self, returns: NDArray[Any]) -> NDArray[np.float32]:
        """Returns-to-go as shares of the largest; 0 without conditioning: [..., 1]."""
        return (returns * (self.conditioned / self.return_scale)).astype(np.float32)[..., None]

    def inputs(self, episode: Trajectory, steps: slice) -> Inputs:
        """Some steps of an episode, by the names of transformers."""
        return {
            "states": self.states(episode.states[:-1][steps]),
            "actions": self.actions(episode.actions[steps]),
            "returns_to_go": self.returns(episode.returns_to_go[steps]),
            "timesteps": np.arange(len(episode))[steps],
        }

    def to_config(self) -> dict[str, Any]:
        """The content of preprocessor_config.json."""
        return {"processor_type": _PROCESSOR_TYPE, **asdict(self)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TrajectoryProcessor:
        values = {name: config[name] for name in cls.__dataclass_fields__}
        return cls(**values | {name: tuple(values[name]) for name in ("mean", "std")})


def read_trajectory_processor(folder: Path) -> TrajectoryProcessor | None:
    """The preprocessing of a folder; None if there is none, or one of something else."""
    config = read_json_object(folder / PROCESSOR_FILE, DataError)
    if config.get("processor_type") != _PROCESSOR_TYPE:
        return None
    try:
        return TrajectoryProcessor.from_config(config)
    except (KeyError, TypeError):
        raise DataError(
            f"{folder / PROCESSOR_FILE} is incomplete", "copy it from the run again"
        ) from None
