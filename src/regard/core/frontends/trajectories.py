"""Front end of trajectories (Chen et al. 2021, Decision Transformer): three tokens a step.

Letters of shapes: B trajectories, L time steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.frontends.embedding import Table
from regard.core.linear import Linear
from regard.core.norm import Norm
from regard.core.output import Inputs
from regard.core.positions.positional_encoding import LearnedPosition
from regard.core.side import FrontEnd
from regard.system.errors import DataError

TOKENS = 3  # of a step: return-to-go, state, action


class Trajectories(FrontEnd):
    """Returns-to-go, states and actions, one after the other, each with the vector of its step."""

    meets_padding = False
    also_reads = ("actions", "returns_to_go", "timesteps")
    shows_norm_alone = True

    def __init__(self, part: spec.Trajectories, d_model: int, norm: Norm) -> None:
        super().__init__()
        self.embed_step = Table(part.steps, d_model)
        self.embed_return = Linear(1, d_model)
        self.embed_state = Linear(part.states, d_model)
        self.embed_action = Linear(part.actions, d_model)
        self.norm = norm
        self.position = LearnedPosition(d_model, part.positions)
        self.dropout = Dropout(part.dropout)
        # In the files, and read by nothing.
        self.kept = nn.Parameter(torch.zeros(part.vocabulary, d_model), requires_grad=False)

    def forward(
        self,
        states: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        *,
        actions: Tensor,
        returns_to_go: Tensor,
        timesteps: Tensor,
    ) -> Tensor:
        """states [B, L, S], actions [B, L, A], returns-to-go [B, L, 1] and time steps [B, L] →
        [B, 3 L, D]."""
        embedded = (
            self.embed_return(returns_to_go),
            self.embed_state(states),
            self.embed_action(actions),
        )
        x = torch.stack(embedded, dim=2)  # [B, L, 3, D]
        x = x + functional.embedding(timesteps, self.embed_step.weight)[:, :, None]
        # The same position for all: time is in the vectors of the steps.
        return self.dropout(self.norm(x.flatten(1, 2)) + self.position.table[0])

    def output_padding_mask(self, padding_mask: Tensor | None) -> Tensor | None:
        return None if padding_mask is None else padding_mask.repeat_interleave(TOKENS, dim=1)

    def check_values(self, inputs: Inputs) -> None:
        timesteps = inputs["timesteps"]
        count = len(self.embed_step.weight)
        if bool(((timesteps < 0) | (timesteps >= count)).any()):
            raise DataError(
                f"this model knows the time steps 0 to {count - 1}, not {int(timesteps.max())}",
                "pass shorter episodes, or load a model with a larger max_ep_len",
            )
