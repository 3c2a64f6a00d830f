"""Trajectories: their files, environments and batches, and policies that are asked for a return."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.data.generated.environments import ENVIRONMENTS, episodes
from regard.data.padding import IGNORED
from regard.data.trajectories import (
    Trajectory,
    TrajectoryProcessor,
    read_trajectories,
    write_trajectories,
)
from regard.system.errors import DataError, ModelError, TrainingInterrupted
from regard.training.assembly import assemble
from regard.training.recipe.loading import load as load_recipe
from regard.training.run_folder import begin
from regard.training.setup import Setup

SMALL: dict[str, Any] = {
    "environment": "cartpole", "builtin_lines": 100, "test_lines": 4, "context": 8,
    "model": "decision-transformer:tiny", "d_model": 16, "objective": "act", "steps": 4,
    "warmup_steps": 1, "batch_tokens": 480, "schedule": "constant", "learning_rate": 1e-3,
    "validate_every": 4, "save_every": 2, "threads": 1, "device": "cpu",
}  # fmt: skip


def objective_of(folder: Path) -> Any:
    recipe = load_recipe(None, SMALL)
    return assemble(Setup(begin(recipe, folder / "run", "test"), recipe, lambda _: None))


# ------------------------------------------------------------------ environments


@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_the_dynamics_are_those_of_gymnasium(name: str) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    theirs = gymnasium.make({"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}[name])
    ours = ENVIRONMENTS[name]
    assert theirs.spec.max_episode_steps == ours.longest
    draw = np.random.default_rng(3)
    for seed in range(3):
        seen, _ = theirs.reset(seed=seed)
        # The state that Gymnasium holds: what is seen of it is in float32.
        state = np.array(theirs.unwrapped.state, np.float64)[None]
        assert np.array_equal(ours.observe(state)[0], seen.astype(np.float32))
        restored = ours.observe(ours.of_observations(seen[None]))[0]
        assert np.allclose(restored, seen, atol=1e-6)
        for _ in range(ours.longest):
            action = ours.random(draw, 1)
            seen, reward, is_over, _, _ = theirs.step(action[0])
            state, rewards, are_over = ours.step(state, action)
            assert np.allclose(ours.observe(state)[0], seen, rtol=1e-5, atol=1e-5)
            assert rewards[0] == pytest.approx(float(reward), rel=1e-6, abs=1e-9)
            assert bool(are_over[0]) == is_over
            if is_over:
                break


def test_generated_episodes_are_of_every_grade() -> None:
    for name, least, best in (("cartpole", 40, 500), ("pendulum", -900, -1)):
        drawn = episodes(name, 200)
        returns = [one.total for one in drawn]
        assert min(returns) < least
        assert max(returns) >= best
        again = episodes(name, 200)
        assert all(np.array_equal(a.actions, b.actions) for a, b in zip(drawn, again, strict=True))
        others = episodes(name, 200, seed=1)
        assert [one.total for one in others] != returns


# ------------------------------------------------------------------ files


def test_a_file_of_episodes_is_read_as_it_was_written(tmp_path: Path) -> None:
    for name in ENVIRONMENTS:
        drawn = episodes(name, 5)
        # What else is in such a file, even pickles, is not looked at.
        write_trajectories(tmp_path / "e.npz", drawn, infos=np.array([{}], dtype=object))
        for one, other in zip(drawn, read_trajectories(tmp_path / "e.npz"), strict=True):
            assert all(np.array_equal(getattr(one, key), getattr(other, key)) for key in vars(one))
        [third] = read_trajectories(f"{tmp_path / 'e.npz'}:2")
        assert np.array_equal(third.states, drawn[2].states)


def test_files_that_hold_no_episodes(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "obs": np.zeros((4, 2)),
        "acts": np.zeros(3, int),
        "rews": np.zeros(3),
    }
    wrong: list[dict[str, Any]] = [
        {},  # no indices
        {"indices": np.array([1])},  # two episodes have two final observations
        {"indices": np.array([], int), "rews": np.array([0, np.nan, 0])},
    ]
    for changes in wrong:
        np.savez(tmp_path / "e.npz", **(arrays | changes))
        with pytest.raises(DataError, match=r"e\.npz"):
            read_trajectories(tmp_path / "e.npz")
    np.savez(tmp_path / "e.npz", **arrays, indices=np.array([], int))
    with pytest.raises(DataError, match="no episode 1: there are 1"):
        read_trajectories(f"{tmp_path / 'e.npz'}:1")


def test_returns_to_go_and_scales() -> None:
    states = np.array([[0.0], [2.0], [4.0]], np.float32)
    one = Trajectory(states, np.array([1, 0]), np.array([3.0, 5.0], np.float32))
    assert one.returns_to_go.tolist() == [8.0, 5.0]
    processor = TrajectoryProcessor.of([one], context=2)
    inputs = processor.inputs(one, slice(None))
    assert inputs["actions"].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert inputs["returns_to_go"].tolist() == [[1.0], [0.625]]
    assert processor.states(states).std() == pytest.approx(1)
    cloning = TrajectoryProcessor.of([one], context=2, conditioned=False)
    assert not cloning.inputs(one, slice(None))["returns_to_go"].any()
    assert (
        TrajectoryProcessor.from_config(json.loads(json.dumps(processor.to_config()))) == processor
    )


# ------------------------------------------------------------------ training


def test_a_window_holds_steps_of_one_episode(tmp_path: Path) -> None:
    objective = objective_of(tmp_path)
    source = objective.source
    sets = objective.data.sets["train"]
    first = len(sets[0])
    batch = source.collate("train", np.array([0, first - 3, first]), (0, 0))
    tensors = batch.tensors
    assert tensors["is_step"].sum(dim=1).tolist() == [8, 3, min(8, len(sets[1]))]
    assert batch.tokens == int(tensors["is_step"].sum())
    assert tensors["labels"][1].tolist() == [*sets[0].actions[-3:], *[IGNORED] * 5]
    assert tensors["timesteps"][2, 0] == 0
    # Each step of the validation episodes counts once.
    rows = np.concatenate(source.evaluation_rows("valid"))
    counted = sum(source.collate("valid", row[None], (0, 0)).tokens for row in rows)
    assert counted == sum(map(len, objective.data.sets["valid"]))


def test_what_is_behind_the_end_changes_nothing(tmp_path: Path) -> None:
    objective = objective_of(tmp_path)
    objective.model.eval()
    row = len(objective.data.sets["train"][0]) - 3
    tensors = objective.collate("train", np.array([row])).tensors
    loss, _ = objective.loss(tensors)
    for name in ("states", "actions", "returns_to_go"):
        tensors[name][:, 3:] = 9.0
    assert torch.equal(objective.loss(tensors)[0], loss)


def test_a_run_resumes_exactly(tmp_path: Path, stop_at: Callable[[int], Any]) -> None:
    whole = regard.train(SMALL, out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        regard.train(SMALL, out=tmp_path / "part", on_step=stop_at(2))
    resumed = regard.resume(tmp_path / "part", quiet=True)
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "part")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert whole.scores["test"].mae == resumed.scores["test"].mae


# ------------------------------------------------------------------ acting


def trained(tmp_path: Path, **changes: Any) -> regard.Policy:
    folder = regard.train({**SMALL, **changes}, out=tmp_path / "run").folder
    return regard.load(folder, regard.Policy, device="cpu")


@pytest.mark.parametrize("environment", ["cartpole", "pendulum"])
def test_acting_by_windows_equals_one_pass(environment: str, tmp_path: Path) -> None:
    """Within the context, what it would do at each step is what a pass over the episode gives, and
    what a roll-out does that follows it."""
    model = trained(tmp_path, environment=environment)
    drawn = episodes(environment, 3, seed=9)
    shortest = min(map(len, drawn))
    assert shortest > SMALL["context"]
    actions = model.act(drawn)
    assert [len(one) for one in actions] == [len(one) for one in drawn]
    first = Trajectory(drawn[0].states[:9], drawn[0].actions[:8], drawn[0].rewards[:8])
    # The returns-to-go of a part are others: those of behaviour cloning are all 0.
    model.processor = TrajectoryProcessor.from_config(
        model.processor.to_config() | {"conditioned": False}
    )
    assert np.allclose(model.act(first), model.act(drawn[0])[:8], atol=1e-5)


def test_a_roll_out_follows_from_its_seed_and_start(tmp_path: Path) -> None:
    model = trained(tmp_path)
    one = model.roll_out([50.0, 100.0, 200.0], seed=1)
    assert np.array_equal(one, model.roll_out([50.0, 100.0, 200.0], seed=1))
    assert len(model.roll_out()) == 10
    starts = np.stack([[0.0, 0.0, 0.2, 2.0]] * 2)  # it falls at once
    assert model.roll_out([500.0, 500.0], starts=starts).max() < 10


def test_a_policy_of_files_alone_is_scored_by_its_loss(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "e.npz", episodes("pendulum", 100))
    settings = {
        key: value
        for key, value in SMALL.items()
        if key not in ("environment", "builtin_lines", "test_lines")
    }
    run = regard.train({**settings, "trajectories": str(tmp_path / "e.npz")}, out=tmp_path / "run")
    model = regard.load(run.folder, regard.Policy, device="cpu")
    assert not model.evaluations
    assert run.scores["valid"].loss > 0
    with pytest.raises(ModelError, match="names no environment"):
        model.roll_out()


def test_episodes_of_another_environment(tmp_path: Path) -> None:
    model = trained(tmp_path)
    with pytest.raises(DataError, match="states of 3 numbers and actions that are numbers"):
        model.act(episodes("pendulum", 1))
    write_trajectories(tmp_path / "e.npz", episodes("cartpole", 2))
    with pytest.raises(DataError, match="2 episodes"):
        model.act(tmp_path / "e.npz")
    assert len(model.act(f"{tmp_path / 'e.npz'}:1")) == len(episodes("cartpole", 2)[1])
