"""A policy that imitates trajectories (Decision Transformer), asked for a return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec as kinds
from regard.core.context import Context
from regard.core.finite_outputs import require_finite
from regard.core.seeding import philox
from regard.data.generated.environments import ENVIRONMENTS, Environment
from regard.data.trajectories import (
    PROCESSOR_FILE,
    Trajectory,
    TrajectoryProcessor,
    read_trajectories,
    read_trajectory_processor,
)
from regard.look.inspectable import Reading
from regard.models.base import Files, Model
from regard.models.tasks import one_or_many
from regard.system.arguments import LARGEST_SEED, whole_number
from regard.system.errors import DataError, ModelError
from regard.wirings.encoder import Encoder

AnyTrajectory = str | Path | Trajectory


class Policy(Model):
    """Acts as in the trajectories that it was trained on; made by `regard.load(folder)`.

    A Decision Transformer is asked for a return, and reads the last steps of an episode.
    """

    reads_files = True
    file_suffix = ".npz"
    model: Encoder
    spec: kinds.Encoder

    @cached_property
    def processor(self) -> TrajectoryProcessor | None:
        """The preprocessing that it was trained with; None for a model without one."""
        return None if self.folder is None else read_trajectory_processor(self.folder)

    @property
    def evaluations(self) -> tuple[str, ...]:
        has_environment = self.processor is not None and self.processor.environment
        return ("act",) if has_environment else ()

    def files(self) -> Files:
        return {} if self.processor is None else {PROCESSOR_FILE: self.processor.to_config()}

    def require_processor(self) -> TrajectoryProcessor:
        """The preprocessing; `ModelError` of a folder that has none."""
        if self.processor is None:
            raise ModelError(
                "this model does not say how states and actions are scaled, nor what they are",
                f"write {PROCESSOR_FILE} into its folder, or pass tensors",
            )
        return self.processor

    @property
    def environment(self) -> Environment:
        """The environment in which it can act."""
        name = self.require_processor().environment
        if name is None:
            raise ModelError(
                "this model names no environment to act in",
                "train it with --environment cartpole or pendulum",
            )
        return ENVIRONMENTS[name]

    # ------------------------------------------------------------------ for `regard.look`

    def read_text(self, text: str) -> Reading:
        """The first steps of an episode, FILE.npz:NUMBER, as many as it reads at once."""
        episode = read_trajectories(text)[0]
        steps = slice(0, self.require_processor().context)
        inputs = self._inputs(episode, steps)
        names = [f"{what} {step}" for step in inputs["timesteps"][0].tolist() for what in "Rsa"]
        return Reading(inputs.pop("states"), tuple(names), inputs)

    def label_name(self, index: int) -> str:
        """The name of an action, or of a number of one."""
        return f"action {index}"

    def short_answer(self, logits: Tensor) -> str:
        """What it does after the last state, by the output of its head [1, L, A]."""
        if self.processor is None:
            return ""
        action = self._actions(logits[0, -1].float().cpu().numpy()).tolist()
        if isinstance(action, int):
            return f"action {action}"
        return ", ".join(f"{number:.3g}" for number in action)

    # ------------------------------------------------------------------ acting

    @one_or_many
    def act(self, episodes: list[AnyTrajectory]) -> list[list[Any]]:
        """What it would do at each step of an episode: the likeliest choice, or numbers.

        It reads the returns-to-go of the episode, and what was done before.
        """
        processor = self.require_processor()
        answers = []
        for episode in map(self._read, episodes):
            # Each step is the last of a window, but in the first one.
            first = self._outputs(self._inputs(episode, slice(0, processor.context)))[0]
            ends = range(processor.context + 1, len(episode) + 1)
            windows = [self._inputs(episode, slice(end - processor.context, end)) for end in ends]
            later = [self._outputs(one)[0, -1:] for one in windows]
            answers.append(self._actions(np.concatenate([first, *later])).tolist())
        return answers

    def roll_out(
        self,
        returns: Sequence[float] | None = None,
        *,
        starts: NDArray[Any] | None = None,
        seed: int = 0,
    ) -> NDArray[np.float64]:
        """The returns that come in its environment where these were asked for, an episode each.

        By default the best of its training data, 10 times. Episodes begin in the `starts`, what is
        seen first, or as drawn by the seed; so are choices, by their probabilities.
        """
        processor = self.require_processor()
        world = self.environment
        asked = np.array([processor.best] * 10 if returns is None else returns, np.float64)
        draw = np.random.Generator(
            philox(whole_number("seed", seed, least=0, most=LARGEST_SEED), 0)
        )
        states = world.start(draw, len(asked)) if starts is None else world.of_observations(starts)
        shape = (len(asked), world.longest)
        history: dict[str, NDArray[np.float32]] = {
            "states": np.zeros((*shape, world.states), np.float32),
            "actions": np.zeros((*shape, self.spec.trajectories.actions), np.float32),
            "returns_to_go": np.zeros((*shape, 1), np.float32),
        }
        came = np.zeros(len(asked))
        is_on = np.ones(len(asked), np.bool_)
        for step in range(world.longest):
            rows = np.flatnonzero(is_on)
            history["states"][rows, step] = processor.states(world.observe(states[rows]))
            history["returns_to_go"][rows, step] = processor.returns(asked[rows] - came[rows])
            window = slice(max(0, step + 1 - processor.context), step + 1)
            inputs = {name: values[rows, window] for name, values in history.items()}
            inputs["timesteps"] = np.broadcast_to(
                np.arange(step + 1)[window], inputs["states"].shape[:2]
            )
            actions = self._actions(self._outputs(self._tensors(inputs))[:, -1], draw)
            history["actions"][rows, step] = processor.actions(actions)
            after = world.step(states[rows], actions)
            states[rows] = after.states
            came[rows] += after.rewards
            is_on[rows] = ~after.is_over
            if not is_on.any():
                break
        return came

    def _read(self, episode: AnyTrajectory) -> Trajectory:
        if isinstance(episode, Trajectory):
            return episode
        episodes = read_trajectories(episode)
        if len(episodes) > 1:
            raise DataError(
                f"{episode} has {len(episodes)} episodes", f"choose one: {episode}:NUMBER"
            )
        return episodes[0]

    def _inputs(self, episode: Trajectory, steps: slice) -> dict[str, Tensor]:
        """The tensors of some steps of an episode [1, L, …]."""
        front = self.spec.trajectories
        processor = self.require_processor()
        numbers = episode.states.shape[1]
        if numbers != front.states or episode.chooses != bool(processor.choices):
            raise DataError(
                f"the episode has states of {numbers} numbers and actions that are "
                f"{'choices' if episode.chooses else 'numbers'}, unlike those of its training",
                "pass episodes of its environment",
            )
        inputs = processor.inputs(episode, steps)
        return self._tensors({name: values[None] for name, values in inputs.items()})

    def _tensors(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        tensors = {name: torch.from_numpy(np.array(values)) for name, values in inputs.items()}
        return {
            name: tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)
            for name, tensor in tensors.items()
        }

    @torch.inference_mode()
    def _outputs(self, inputs: dict[str, Tensor]) -> NDArray[np.float32]:
        """What the head says of actions [B, L, A]: logits of choices, or shares of the largest."""
        self.model.eval()
        self.model.check_values(inputs)
        hidden = self.model.hidden_states(inputs, Context())
        outputs = self.model.head_output(hidden, inputs).float().cpu()
        return require_finite(outputs, self.model).numpy()

    def _actions(
        self, outputs: NDArray[np.float32], draw: np.random.Generator | None = None
    ) -> NDArray[Any]:
        """The actions of outputs [..., A]: choices [...], which may be drawn, or numbers."""
        processor = self.require_processor()
        if not processor.choices:
            return outputs * processor.action_scale
        if draw is not None:
            # The largest of logits with such noise is a sample.
            return (outputs + draw.gumbel(size=outputs.shape)).argmax(axis=-1)
        return outputs.argmax(axis=-1)
