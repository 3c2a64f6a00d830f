"""Decision Transformer (Chen et al. 2021): the actions of trajectories, given the returns-to-go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.nn import functional

from regard import spec
from regard.core.heads.trajectory_head import TrajectoryHead
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.outputs import roll_out
from regard.evaluation.scores import Score
from regard.evaluation.task import Outputs, Settings
from regard.models import Model, Policy
from regard.training import model_spec
from regard.training.data.trajectory_source import Episodes, StoredTrajectories
from regard.training.objectives.losses import LossSums, LossTerms, Tensors, cross_entropy
from regard.training.objectives.objective import ScoredObjective
from regard.training.setup import Setup


def action_loss(model: Any, tensors: Tensors) -> LossTerms:
    """−log p of choices, or the squared error of the numbers of actions, summed over steps."""
    more = {name: tensors[name] for name in ("actions", "returns_to_go", "timesteps")}
    hidden, auxiliary = model(tensors["states"], **more)  # [B, 3 L, D]
    outputs = model.require(TrajectoryHead)(hidden).actions  # [B, L, A]
    is_step = tensors["is_step"]
    if "labels" in tensors:
        loss, nll = cross_entropy(outputs, tensors["labels"], 0.0)
        return LossTerms(loss, nll, auxiliary, is_step.sum())
    errors = functional.mse_loss(outputs.float(), tensors["actions"], reduction="none")
    total = (errors.mean(dim=-1) * is_step).sum()
    # There is no −log p, so that it stands for both.
    return LossTerms(total, total.detach(), auxiliary, is_step.sum())


class Acting(ScoredObjective):
    """The action of each step of a window; next states and returns are not trained on, as in the
    paper."""

    name = "act"
    unit = "actions"
    labels_are_classes = False
    base_tasks = ("act",)
    base_advice = "give a policy, such as Decision Transformer"
    spec_classes = (spec.Encoder,)
    input_names = ("states",)
    head_fields = "heads=(TrajectoryHead(),)"
    source_class = Episodes
    source: Episodes
    trained_model: Policy

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def has_head(cls, description: Any) -> bool:
        return description.part(spec.TrajectoryHead) is not None

    @classmethod
    def describe(cls, setup: Setup, data: StoredTrajectories) -> spec.Model:
        first = data.sets["train"][0]
        actions = data.processor.choices or first.actions.shape[1]
        longest = max(len(one) for episodes in data.sets.values() for one in episodes)
        description: Any = model_spec.describe(setup.recipe, actions)
        front = replace(
            description.trajectories,
            states=first.states.shape[1],
            actions=actions,
            steps=max(longest, description.trajectories.steps),
        )
        # Logits of choices have no bounds.
        head = spec.TrajectoryHead(bounded=not data.processor.choices)
        return replace(description, input=front).with_head(head)  # type: ignore[no-any-return]

    @classmethod
    def adapt(cls, base: Model, data: StoredTrajectories, setup: Setup) -> Model:
        base.require_processor()  # type: ignore[attr-defined]
        return base

    # --- training ---------------------------------------------------------------------------------

    def loss(self, tensors: Tensors) -> LossSums:
        return self.total(action_loss(self.model, tensors))

    # --- evaluation -------------------------------------------------------------------------------

    def outputs(self, split: str) -> tuple[OutputKind, Outputs]:
        return "prediction", roll_out(self.trained_model, self.data.sets[split], Settings())

    def score(self, split: str) -> Score:
        """The returns that come; of a policy without an environment, the loss."""
        if self.trained_model.evaluations:
            return super().score(split)
        return Score(**self.likelihood(split), examples=len(self.data.sets[split]))
