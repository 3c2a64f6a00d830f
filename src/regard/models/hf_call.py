"""The call convention of transformers: argument names of a model, and names of its output tensors.

Which tensors come out depends on the architecture that config.json names, because one file of
weights may hold more heads than that architecture uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard import spec as kinds
from regard.core.context import Context
from regard.core.output import OutputOptions
from regard.core.probe import NO_PROBE, NullProbe, Probe
from regard.core.side import FrontEnd
from regard.core.stacks.reversible import ReversibleStack
from regard.look.probe_names import residual_probes
from regard.system.errors import SettingError, did_you_mean
from regard.wirings.core_model import CoreModel

Tensors = tuple[Tensor, ...]
# Of stacks only: sublayers have an output as well.
_HIDDEN_STATES = ("*.embedded", "*.residual", "*coder.output", "memory.output")
_ATTENTIONS = ("*.self", "*.cross")
_PADDING_MASKS = (
    "attention_mask",
    "pixel_mask",
    "decoder_attention_mask",
    "story_mask",
    "question_mask",
)
# Arguments of a call that are no inputs.
OUTPUT_OPTIONS = ("output_hidden_states", "output_attentions")
IMAGE_OPTIONS = ("interpolate_pos_encoding",)  # of models that read images


def _tensor_name(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"


class ModelOutput(dict[str, Any]):
    """Output tensors by name, by attribute and by number, like transformers' `ModelOutput`.

    `out.logits` is `out["logits"]`, and `out[0]` the first tensor.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this output has no {name}, only {', '.join(self)}") from None

    def __getitem__(self, name: str | int) -> Any:
        if isinstance(name, int):
            # Insertion order is that of transformers: loss first if there is one, then logits.
            return list(self.values())[name]
        return super().__getitem__(name)

    def __repr__(self) -> str:
        """The shape and dtype of each tensor; the numbers would fill pages."""
        parts = [f"{name}: {_tensor_name(value)}" for name, value in self.items()]
        return f"ModelOutput({', '.join(parts)})"


def bind_arguments(
    spec: kinds.Model, positional: tuple[Any, ...], keywords: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The tensors of a call by argument name; those that are None are left out.

    An argument that the model does not take is an error.
    """
    required = [one.name for one in spec.inputs]
    if len(positional) > len(required):
        raise SettingError(
            f"this model takes {len(required)} arguments",
            f"pass at most these: {', '.join(required)}",
        )
    for name in keywords:
        if name not in required:
            raise SettingError(
                f"this model has no argument {name!r}",
                f"{did_you_mean(name, required)} (known: {', '.join(required)})",
            )
    arguments = dict(zip(required, positional, strict=False)) | dict(keywords)
    # In the model's order, whatever the order of the keywords: the first one is the main input.
    tensors = {name: arguments[name] for name in required if arguments.get(name) is not None}
    for name, value in tensors.items():
        if isinstance(value, int | float):  # a speaker, a rate
            tensors[name] = torch.tensor(value, dtype=torch.float64)
        elif not isinstance(value, Tensor):
            raise SettingError(
                f"{name} is not a tensor but {type(value).__name__}",
                "pass tensors, as in `model(**model.tokens(texts))` or "
                "`model.image_processor.batch(images)`",
            )
    return tensors


def fold_choices(
    spec: kinds.Model, inputs: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], torch.Size | None]:
    """The texts [B, C, T] that a head of choices weighs as B·C texts, and [B, C]; what has no
    dimension of choices is left as it is."""
    main = inputs.get(spec.main_input_name)
    if spec.task != "choice" or main is None or main.ndim != 3:
        return dict(inputs), None
    choices = main.shape[:2]
    folded = {
        name: value.flatten(0, 1) if value.shape[:2] == choices else value
        for name, value in inputs.items()
    }
    return folded, choices


def call(
    model: CoreModel,
    config: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    *,
    choices: torch.Size | None = None,
    output_hidden_states: bool = False,
    output_attentions: bool = False,
    interpolate_pos_encoding: bool = False,
) -> ModelOutput:
    """Runs a model on named inputs; the main output tensors, in the order of transformers.

    `choices` is what `fold_choices` has folded.
    """
    recorded = RecordedOutputs.of(model, inputs, output_hidden_states, output_attentions)
    model.check_values(inputs)
    # Where nothing is padded, attention takes the faster path without a mask.
    tensors = {
        name: tensor
        for name, tensor in inputs.items()
        if name not in _PADDING_MASKS or padding_mask(tensor) is not None
    }

    # config.json lists one architecture: the class that the weights were saved from.
    architecture = str((config.get("architectures") or [""])[0])
    context = Context(recorded.probe, interpolates=interpolate_pos_encoding)
    options = OutputOptions(context, architecture, config.get("pad_token_id"))
    outputs = {
        name: output.value if choices is None else output.tensor.unflatten(0, choices)
        for name, output in model.outputs(tensors, options).items()
    }
    return ModelOutput(recorded.among(outputs))


def padding_mask(attention_mask: Tensor | None) -> Tensor | None:
    """Hugging Face's attention mask (1 = token, 0 = padding) as booleans.

    None where nothing is padded: attention then takes the faster path without a mask.
    """
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask.bool()


# ------------------------------------------------------------------ from inside the model


@dataclass(frozen=True)
class RecordedOutputs:
    """output_hidden_states and output_attentions: the probe of one call, and the tuples that
    transformers makes of its records."""

    model: CoreModel
    inputs: Mapping[str, Tensor]
    probe: NullProbe

    @classmethod
    def of(
        cls, model: CoreModel, inputs: Mapping[str, Tensor], hidden_states: bool, attentions: bool
    ) -> RecordedOutputs:
        """What is asked for; with nothing, a probe that records nothing."""
        # Only what is asked for is recorded: a probe holds every tensor until the call is over.
        wanted: list[str] = []
        if hidden_states:
            wanted += _HIDDEN_STATES
        if attentions:
            wanted += _ATTENTIONS
        if not wanted:
            return cls(model, inputs, NO_PROBE)
        # As in transformers, gradients flow through what is returned.
        return cls(model, inputs, Probe(wanted, gradients=True))

    def among(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """The outputs of a call and what was recorded, in the order of transformers."""
        stacks = list(self.model.stacks())
        if stacks == ["encoder", "decoder"]:
            result: dict[str, Any] = {}
            for name, value in outputs.items():
                if name == "encoder_last_hidden_state":
                    result |= self._of_stack("decoder", "decoder_") | {name: value}
                    result |= self._of_stack("encoder", "encoder_")
                result[name] = value
            return result
        if len(stacks) == 2 and self.probe.active:
            # transformers gives the towers' own outputs as well; here, if something of them is
            # asked for.
            return outputs | {
                f"{name}_model_output": ModelOutput(self._of_stack(stack))
                for name, stack in zip(("text", "vision"), stacks, strict=True)
            }
        return outputs | self._of_stack(stacks[0]) if len(stacks) == 1 else outputs

    def _of_stack(self, stack: str, prefix: str = "") -> dict[str, Tensors]:
        """Hidden states and attention weights of a stack, under the names of transformers."""
        outputs = {
            f"{prefix}hidden_states": self._hidden_states(stack, self._last(stack, prefix)),
            f"{prefix}attentions": self._attentions(stack, "self"),
            "cross_attentions": self._attentions(stack, "cross"),
        }
        return {name: tensors for name, tensors in outputs.items() if tensors is not None}

    def _last(self, stack: str, prefix: str) -> str:
        """The probe of the last hidden state: after the final norm, but in reversible stacks.

        That of an encoder that stands alone is before it: such is transformers' order in ViT, CLIP
        and Wav2Vec2.
        """
        front_end: Any = self.model.front_ends().get(stack, FrontEnd())
        alone = stack.endswith("encoder") and not (prefix and front_end.shows_norm)
        alone = alone and not front_end.shows_norm_alone
        if alone or self._is_reversible(stack):
            return residual_probes(self.model, stack)[-1]
        return f"{stack}.output"

    def _hidden_states(self, stack: str, last: str) -> Tensors | None:
        """The embeddings, and the output of each layer; the last one is the probe `last`."""
        layers = self.model.stacks()[stack].output_layers
        embedded, *residuals = residual_probes(self.model, stack)
        names = [embedded, *(residuals[i] for i in layers[:-1]), last]
        if not isinstance(self.probe, Probe) or last not in self.probe.tensors:
            return None
        states = [self.probe.tensors[name] for name in names]
        front_end: Any = self.model.front_ends().get(stack, FrontEnd())
        if not self._is_reversible(stack):
            shown = tuple(front_end.states(one, self.inputs) for one in states)
            shown = shown if front_end.shows_first else shown[1:]
            return shown if front_end.shows_last else shown[:-1]
        # Of the two streams, transformers gives the second (Reformer).
        width = states[0].shape[-1]
        return tuple(state[..., -width:] for state in states)

    def _is_reversible(self, stack: str) -> bool:
        return isinstance(self.model.stacks()[stack], ReversibleStack)

    def _attentions(self, stack: str, kind: str) -> Tensors | None:
        """The weights [B, H, T, S] of each layer; None if nobody asked, or there are none."""
        if not isinstance(self.probe, Probe) or _ATTENTIONS[0] not in self.probe.wanted:
            return None
        # The fused kernels return no weights: a probe records their arguments instead.
        calls = self.probe.attentions
        if not calls:
            raise SettingError("this model has no attention", "remove output_attentions")
        names = [f"{stack}.{i}.{kind}" for i in self.model.stacks()[stack].weighed_layers]
        in_rows = [calls[name].in_rows or calls[name] for name in names if name in calls]
        weights = [call.weights() for call in in_rows]
        # The sides of recurrent models have no self-attention.
        return tuple(weights) or None
