"""Environments of which episodes are generated: a pole on a cart, and a pendulum to swing up.

The dynamics are those of Gymnasium's CartPole-v1 and Pendulum-v1, for many episodes at once. What
acts in them here is of every grade, so that returns differ.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.core.seeding import derive_seed, philox
from regard.data.trajectories import Trajectory

_STREAM = 0xCA27
_GOOD = 0.9  # the grade from which on policies are the best
_RANDOM = 0.05  # the share of actions that are drawn at random instead
Values = NDArray[np.float64]


class Step(NamedTuple):
    """What follows the actions of N episodes."""

    states: Values  # [N, D]
    rewards: Values  # [N]
    is_over: NDArray[np.bool_]  # [N], before the longest episode is


class Environment(ABC):
    """The dynamics of N episodes at once, without state of its own: states go in and come out."""

    name: ClassVar[str]
    longest: ClassVar[int]  # steps of an episode
    states: ClassVar[int]  # numbers of an observation
    choices: ClassVar[int]  # actions to choose from; 0: an action is a number

    @abstractmethod
    def start(self, draw: np.random.Generator, count: int) -> Values:
        """States at the beginning of episodes: [N, D]."""

    @abstractmethod
    def observe(self, states: Values) -> NDArray[np.float32]:
        """The observations of states: [N, S]."""

    @abstractmethod
    def of_observations(self, observations: NDArray[Any]) -> Values:
        """The states that give these observations."""

    @abstractmethod
    def step(self, states: Values, actions: NDArray[Any]) -> Step:
        """The next states: actions [N] are choices, or [N, 1] numbers."""

    @abstractmethod
    def graded(self, states: Values, grades: Values) -> NDArray[Any]:
        """The actions of policies by hand, of these grades [N]: from −1 to 1, the larger the size
        the better."""

    @abstractmethod
    def random(self, draw: np.random.Generator, count: int) -> NDArray[Any]:
        """Actions drawn at random."""


class CartPole(Environment):
    """A pole on a cart, which is pushed left or right (Barto et al. 1983): a reward of 1 for each
    step until it falls, or the cart leaves the track."""

    name = "cartpole"
    longest = 500
    states = 4
    choices = 2
    gravity, cart, pole, half_length, force, seconds = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    track = 2.4
    angle = 12 * 2 * math.pi / 360

    def start(self, draw: np.random.Generator, count: int) -> Values:
        return draw.uniform(-0.05, 0.05, (count, 4))

    def observe(self, states: Values) -> NDArray[np.float32]:
        return states.astype(np.float32)

    def of_observations(self, observations: NDArray[Any]) -> Values:
        return observations.astype(np.float64)

    def step(self, states: Values, actions: NDArray[Any]) -> Step:
        _, x_dot, theta, theta_dot = states.T
        push = np.where(actions == 1, self.force, -self.force)
        total = self.cart + self.pole
        moment = self.pole * self.half_length
        cos, sin = np.cos(theta), np.sin(theta)
        pull = (push + moment * np.square(theta_dot) * sin) / total
        inertia = self.half_length * (4 / 3 - self.pole * np.square(cos) / total)
        theta_acceleration = (self.gravity * sin - cos * pull) / inertia
        x_acceleration = pull - moment * theta_acceleration * cos / total
        rates = np.stack([x_dot, x_acceleration, theta_dot, theta_acceleration], axis=1)
        after = states + self.seconds * rates  # Euler's method
        is_over = (np.abs(after[:, 0]) > self.track) | (np.abs(after[:, 2]) > self.angle)
        return Step(after, np.ones(len(states)), is_over)

    def graded(self, states: Values, grades: Values) -> NDArray[Any]:
        """The pole is held at a lean to the side of the sign, until the cart leaves the track, or
        lets it fall; the best hold it upright in the middle."""
        x, x_dot, theta, theta_dot = states.T
        seconds = (40 + 220 * np.abs(grades)) * self.seconds
        # Under this lean the cart reaches the edge in so many seconds, if nothing disturbs it.
        lean = np.sign(grades) * 2 * self.track / (self.gravity * np.square(seconds))
        wanted = np.where(np.abs(grades) < _GOOD, lean, -0.1 * x - 0.3 * x_dot)
        return (theta + 0.4 * theta_dot > wanted).astype(np.int64)

    def random(self, draw: np.random.Generator, count: int) -> NDArray[Any]:
        return draw.integers(2, size=count)


class Pendulum(Environment):
    """A pendulum that is turned by a torque too weak to lift it at once: the reward is minus its
    squared angle from the top, with its speed and the torque."""

    name = "pendulum"
    longest = 200
    states = 3
    choices = 0
    gravity, mass, length, seconds, fastest, strongest = 10.0, 1.0, 1.0, 0.05, 8.0, 2.0

    def start(self, draw: np.random.Generator, count: int) -> Values:
        return draw.uniform(-1, 1, (count, 2)) * [math.pi, 1.0]

    def observe(self, states: Values) -> NDArray[np.float32]:
        theta, theta_dot = states.T
        return np.stack([np.cos(theta), np.sin(theta), theta_dot], axis=1).astype(np.float32)

    def of_observations(self, observations: NDArray[Any]) -> Values:
        cos, sin, theta_dot = observations.astype(np.float64).T
        return np.stack([np.arctan2(sin, cos), theta_dot], axis=1)

    def step(self, states: Values, actions: NDArray[Any]) -> Step:
        theta, theta_dot = states.T
        torque = actions[:, 0].clip(-self.strongest, self.strongest)
        from_top = (theta + math.pi) % (2 * math.pi) - math.pi
        costs = np.square(from_top) + 0.1 * np.square(theta_dot) + 0.001 * np.square(torque)
        acceleration = 3 * self.gravity / (2 * self.length) * np.sin(theta)
        acceleration += 3 / (self.mass * self.length**2) * torque
        speed = (theta_dot + self.seconds * acceleration).clip(-self.fastest, self.fastest)
        after = np.stack([theta + self.seconds * speed, speed], axis=1)
        return Step(after, -costs, np.zeros(len(states), np.bool_))

    def graded(self, states: Values, grades: Values) -> NDArray[Any]:
        """Energy is pumped in until it is that of the top, where a spring and a damper hold the
        pendulum; with a share of the torque, which is all of it for the best."""
        theta, theta_dot = states.T
        from_top = (theta + math.pi) % (2 * math.pi) - math.pi
        energy = np.square(theta_dot) / 6 + self.gravity / 2 * (np.cos(theta) - 1)
        pumped = np.where(theta_dot >= 0, 1.0, -1.0) * np.sign(-energy) * self.strongest
        spring = -10 * from_top - 2.5 * theta_dot
        is_near = (np.abs(from_top) < 0.5) & (np.abs(theta_dot) < 3)
        torque = np.where(is_near, spring, pumped).clip(-self.strongest, self.strongest)
        return (torque * np.minimum(1, np.abs(grades) / _GOOD))[:, None]

    def random(self, draw: np.random.Generator, count: int) -> NDArray[Any]:
        return draw.uniform(-self.strongest, self.strongest, (count, 1))


ENVIRONMENTS: dict[str, Environment] = {one.name: one for one in (CartPole(), Pendulum())}


def episodes(name: str, count: int, seed: int = 0) -> list[Trajectory]:
    """Episodes of policies of every grade, of whose actions some are random."""
    world = ENVIRONMENTS[name]
    draw = np.random.Generator(philox(derive_seed(seed, _STREAM), world.longest))
    grades = draw.uniform(-1, 1, count)
    states = world.start(draw, count)
    observations, actions, rewards = [world.observe(states)], [], []
    lengths = np.zeros(count, np.int64)
    is_on = np.ones(count, np.bool_)
    for _ in range(world.longest):
        chosen = world.graded(states, grades)
        slips = draw.random(count) < _RANDOM
        chosen[slips] = world.random(draw, count)[slips]
        actions.append(chosen)
        states, reward, is_over = world.step(states, actions[-1])
        observations.append(world.observe(states))
        rewards.append(reward)
        lengths += is_on
        is_on &= ~is_over
        if not is_on.any():
            break
    # [N, T, …]; what came after the end of an episode is left out.
    by_episode = zip(
        *(np.stack(values, axis=1) for values in (observations, actions, rewards)),
        lengths,
        strict=True,
    )
    return [
        Trajectory(states[: end + 1], actions[:end], rewards[:end].astype(np.float32))
        for states, actions, rewards, end in by_episode
    ]
