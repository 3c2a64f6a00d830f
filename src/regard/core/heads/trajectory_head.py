"""Head of trajectories (Chen et al. 2021, Decision Transformer): action, next state and return."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard import spec
from regard.core.frontends.trajectories import TOKENS
from regard.core.heads.head import Head, Reading
from regard.core.linear import Linear
from regard.core.output import Output, Outputs


class NextSteps(NamedTuple):
    """What follows in a trajectory, at each of its steps."""

    states: Tensor  # [B, L, S]
    actions: Tensor  # [B, L, A]
    returns: Tensor  # [B, L, 1]


class TrajectoryHead(Head):
    """Linear maps of hidden states [B, 3 L, D]: of that of a state to its action, of that of an
    action to the state and the return-to-go behind it."""

    leads = True

    def __init__(self, part: spec.TrajectoryHead, d_model: int, front: spec.Trajectories) -> None:
        super().__init__()
        self.bounded = part.bounded
        self.state = Linear(d_model, front.states)
        self.action = Linear(d_model, front.actions)
        self.next_return = Linear(d_model, 1)

    def forward(self, hidden: Tensor) -> NextSteps:
        _, at_state, at_action = hidden.unflatten(1, (-1, TOKENS)).unbind(dim=2)  # [B, L, D] each
        actions = self.action(at_state)
        actions = torch.tanh(actions) if self.bounded else actions
        return NextSteps(self.state(at_action), actions, self.next_return(at_action))

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        return self(hidden).actions

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        steps = self(hidden)
        mask = reading.padding_mask
        named = {
            "state_preds": Output(steps.states, mask),
            "action_preds": Output(steps.actions, mask),
            "return_preds": Output(steps.returns, mask),
        }
        return named | {"last_hidden_state": Output(hidden, reading.positions)}
