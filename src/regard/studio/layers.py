"""What a layer computes, as formulas of its own parts, and what a model would answer after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.block import Block, ParallelBlock
from regard.core.feedforward import (
    ACTIVATION_NAMES,
    ConvFeedForward,
    FeedForward,
    GatedFeedForward,
)
from regard.core.finite_outputs import require_finite
from regard.core.frontends.embedding import Embedding
from regard.core.frontends.lagged_values import StepEmbedding
from regard.core.frontends.node_features import NodeFeatures
from regard.core.frontends.patch_embedding import Patches
from regard.core.frontends.resnet import ConvStem, ResidualStages
from regard.core.frontends.series_patches import SeriesPatches
from regard.core.frontends.spectrogram_frontend import Spectrogram
from regard.core.frontends.trajectories import Trajectories
from regard.core.frontends.waveform_frontend import Waveform
from regard.core.heads.head import ClassifierHead
from regard.core.mixture_of_experts import MixtureOfExperts
from regard.core.norm import LayerNorm, Norm, RMSNorm
from regard.core.positions.rotary import Rope
from regard.core.residual import NoResidual, PostNorm, PreNorm, SandwichNorm
from regard.core.stack import Stack
from regard.look import Look, fitting_views, lens
from regard.look.forward import evaluation_mode
from regard.look.inspectable import Inspectable
from regard.look.logit_lens import layer_outputs
from regard.models import Model
from regard.studio.answers import task_of
from regard.wirings.core_model import CoreModel

Formulas = dict[str, str]

# ------------------------------------------------------------------ the whole layer


def layer_formulas(core: CoreModel, name: str) -> Formulas:
    """The formulas of the stations of a stack's layers; without those that it does not have."""
    formulas = {"embedded": embedding_formula(core.front_ends().get(name))}
    stack = core.stacks()[name]
    if isinstance(stack, ResidualStages):
        formulas["sum"] = "x ← ReLU(x + BatchNorm(convolution(…)))"
    if not isinstance(stack, Stack):
        return formulas
    block = stack.block(0)
    norm = _norm(block)
    if isinstance(stack.position, Rope):
        formulas |= {"q": "Q = R(x W_Q)", "k": "K = R(x W_K)"}
    if norm is not None:
        formulas["input"] = norm_formula(norm)
    formulas["sum"] = _residual_formula(block, norm)
    formulas["feedforward"] = feedforward_formula(block.feedforward)
    hidden = hidden_formula(block.feedforward)
    if hidden is not None:
        formulas["hidden"] = hidden
    formulas["output"] = "x" if stack.final_norm is None else f"{_name(stack.final_norm)}(x)"
    return formulas


def linear_formula(core: CoreModel) -> str | None:
    """What DLinear and NLinear compute, which have no layers; None for all others."""
    if core.stacks():
        return None
    if "trend" not in dict(core.named_children()):
        return "y = W (x − x_L) + b + x_L, where x_L is the last value"
    return "y = W_s (x − trend) + W_t trend + b, where trend is a moving average"


# ------------------------------------------------------------------ parts


def embedding_formula(part: nn.Module | None) -> str:
    """How a position of the input becomes a vector."""
    match part:
        case Embedding():
            return _token_embedding_formula(part)
        case Patches():
            return _normed("W · pixels" + _plus_position(part.position), part.norm)
        case ConvStem():
            return "x = activation(BatchNorm(convolution(pixels)))"
        case Spectrogram():
            return "x = convolutions(sound)" + _plus_position(part.position)
        case Waveform():
            return "x = convolutions(sound) + convolution(neighbours)"
        case SeriesPatches() | StepEmbedding():
            return "x = W · values + position"
        case Trajectories():
            return "x = LayerNorm(W · (return, state or action) + step) + position"
        case NodeFeatures():
            degree = "" if part.degrees is None else " + D[degree]"
            laplacian = "" if part.laplacian is None else " + W_L · eigenvectors"
            return f"x = W · features{degree}{laplacian}"
        case _:
            return "x = E[token]"


def _token_embedding_formula(part: Embedding) -> str:
    """Scale, segments, position and norm, each if the embedding has it."""
    vector = "E[token]" if part.scale == 1.0 else "√d · E[token]"
    if part.segments is not None:
        vector += " + segment"
    vector += _plus_position(part.position)
    if part.concatenated is not None:
        vector = f"[{vector}, position]"
    return _normed(vector, part.norm)


def _normed(vector: str, norm: nn.Module | None) -> str:
    return f"x = {vector}" if norm is None else f"x = {_name(norm)}({vector})"


def _plus_position(position: nn.Module | None) -> str:
    return "" if position is None else " + position"


def norm_formula(norm: Norm) -> str:
    """The definition of a norm, with the parameters that it has."""
    match norm:
        case RMSNorm():
            return "RMSNorm(x) = x / √mean(x²) · γ"
        case LayerNorm(bias=None):
            return "LayerNorm(x) = (x − mean) / std · γ"
        case _:
            return f"{_name(norm)}(x) = (x − mean) / std · γ + β"


def feedforward_formula(part: nn.Module) -> str:
    """The network at each position, with its activation."""
    match part:
        case FeedForward():
            return _affine(f"W₂ {hidden_formula(part)}", part.outer, "b₂")
        case GatedFeedForward():
            return f"W₂ ({hidden_formula(part)})"
        case ConvFeedForward():
            return f"conv₂({_activation(part)}(conv₁(x)))"
        case MixtureOfExperts():
            return f"Σ pᵢ FFNᵢ(x), the {part.top} likeliest of {len(part.experts)} experts"
        case _:
            return "FFN(x)"


def hidden_formula(part: nn.Module) -> str | None:
    """The activations inside the network at each position; None where it has several of them."""
    match part:
        case FeedForward():
            return f"{_activation(part)}({_affine('W₁ x', part.inner, 'b₁')})"
        case GatedFeedForward():
            return f"{_activation(part)}(W x) ⊙ V x"
        case _:
            return None


def _affine(product: str, linear: nn.Module, bias: str) -> str:
    return product if getattr(linear, "bias", None) is None else f"{product} + {bias}"


def _activation(part: FeedForward | GatedFeedForward | ConvFeedForward) -> str:
    """The usual name of the activation; its approximations are called as what they approximate."""
    names = {"relu": "ReLU", "silu": "SiLU", "tanh": "tanh"}
    return names.get(ACTIVATION_NAMES[part.activation], "GELU")


def _name(norm: nn.Module) -> str:
    return type(norm).__name__


def _norm(block: nn.Module) -> Norm | None:
    """The norm of the first sublayer; of reversible blocks the first that there is."""
    if isinstance(block, Block):
        block = next(iter(block.residual.each))
    elif isinstance(block, ParallelBlock):
        block = block.residual
    norms = (part for part in block.modules() if isinstance(part, Norm))
    return next(norms, None)


def _residual_formula(block: nn.Module, norm: Norm | None) -> str:
    """What stands after a sublayer."""
    name = "norm" if norm is None else _name(norm)
    if isinstance(block, ParallelBlock):
        return f"x + attention({name}(x)) + FFN({name}(x))"
    residual = next(iter(block.residual.each)) if isinstance(block, Block) else None
    match residual:
        case PostNorm():
            return f"{name}(x + sublayer(x))"
        case PreNorm() | None:
            return f"x + sublayer({name}(x))"
        case SandwichNorm():
            return f"x + {name}(sublayer({name}(x)))"
        case NoResidual(pre=True):
            return f"sublayer({name}(x))"
        case _:
            return f"{name}(sublayer(x))"


# The likeliest token or class of a position, with its probability; None where nothing is said.
Guess = tuple[str, float] | None


def layer_guesses(run: Look, stack: str, rows: Sequence[int]) -> list[list[Guess]] | None:
    """[layers + 1][rows]: the likeliest answer at some positions, before and after each layer.

    None for a stack on which no vocabulary and no classes stand.
    """
    if stack != list(run.model.model.stacks())[-1]:
        return None
    if "lens" in fitting_views(run.model):
        return _words(run, rows)
    return _classes(run, stack, rows)


def _words(run: Look, rows: Sequence[int]) -> list[list[Guess]]:
    result = lens(run, top=1, positions=rows)
    guesses: list[list[Guess]] = []
    for tokens, probabilities in zip(result.tokens, result.probabilities, strict=True):
        best = zip(tokens, probabilities, strict=True)
        guesses.append([(token[0], float(probability[0])) for token, probability in best])
    return guesses


def _classes(run: Look, stack: str, rows: Sequence[int]) -> list[list[Guess]] | None:
    """Of classes of each position, or of the first one, which is read for the whole input."""
    core: Any = run.model.model
    labels = core.heads().get("labels")
    pool = core.heads().get("pool")
    # Scores of other tasks, and of several labels at once, are not shares of one answer.
    is_choice = isinstance(labels, ClassifierHead) and _chooses_one(run.model)
    if not isinstance(core.stacks()[stack], Stack) or not is_choice:
        return None
    of_first = pool is not None and pool.which == "first" and labels.pool is None
    if not labels.per_token and not of_first:
        return None
    guesses = []
    with evaluation_mode(core):
        for hidden in layer_outputs(run):
            logits = require_finite(core.classes(hidden, inputs=run.model_inputs.inputs), core)
            guesses.append(_likeliest(run, logits[0].float(), rows))
    return guesses


def _chooses_one(model: Inspectable) -> bool:
    if not isinstance(model, Model) or model.config.get("problem_type") is not None:
        return False
    return task_of(model) in ("classify", "tag", "transcribe")


def _likeliest(run: Look, logits: Tensor, rows: Sequence[int]) -> list[Guess]:
    """Of logits [T, L] those of the rows; of [L] that of the first position alone."""
    best = torch.atleast_2d(logits).softmax(dim=-1).max(dim=-1)
    labels = map(run.model.label_name, best.indices.tolist())
    guesses = dict(enumerate(zip(labels, best.values.tolist(), strict=True)))
    return [*map(guesses.get, rows)]
