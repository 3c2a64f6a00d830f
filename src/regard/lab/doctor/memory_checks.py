"""Memory that a training would take, predicted by the planner before anything is built."""

from __future__ import annotations

from collections.abc import Iterator

from regard.lab.plan.planner import HEADROOM, Plan, find_device, make_plan
from regard.lab.plan.subject import Request, of_recipe
from regard.system import memory
from regard.system.errors import RegardError
from regard.training.diagnostics.finding import Finding
from regard.training.recipe.schema import Recipe

# The planner's error of the peak is below 10 %, and free memory changes while a run goes on.
SURE = 1.2  # times what is free


def check_memory(recipe: Recipe, name: str) -> Iterator[Finding]:
    """A training step whose weights, activations and optimizer states do not fit the device."""
    try:
        subject = of_recipe(recipe, name, Request())
        # Without timing: only the trace of tensors is needed, which takes no memory itself.
        plan = make_plan(subject, find_device(recipe.train.device), calibrate=False)
    except RegardError:
        return  # a run of another machine, or parts of the user's that no preset describes
    if plan.fits is not False or plan.device.memory is None:
        return
    states = plan.memory.weights + plan.memory.gradients + plan.memory.optimizer
    yield Finding(
        "memory",
        f"a step needs {memory.amount(plan.needed)} according to `regard plan`, "
        f"{memory.amount(states)} of it for {plan.trace.parameters:,} parameters; "
        f"{plan.device.name} has {memory.amount(plan.device.memory)}",
        "the model and its batch do not fit into memory",
        _change(plan),
        0.95 if plan.needed > SURE * HEADROOM * plan.device.memory else 0.75,
    )


def _change(plan: Plan) -> str:
    """The planner's remedies up to the one that fits."""
    if any(remedy.fits for remedy in plan.remedies):
        changes = ", then ".join(remedy.change for remedy in plan.remedies)
        return f"{changes} (see `regard plan`)"
    return "use a smaller model, a device with more memory, or fine-tune with LoRA"
