"""output_hidden_states and output_attentions: what a call returns from inside the model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.core.probe import NO_PROBE, AttentionCall, HasWeights, NullProbe, Probe
from regard.core.reversible import ReversibleStack
from regard.core.stack import Stack
from regard.core_model import CoreModel
from regard.errors import SettingError
from regard.look.probe_names import residual_probes

Tensors = tuple[Tensor, ...]
# Of stacks only: sublayers have an output as well.
_HIDDEN_STATES = ("*.embedded", "*.residual", "*coder.output", "memory.output")
_ATTENTIONS = ("*.self", "*.cross")


@dataclass(frozen=True)
class RecordedOutputs:
    """The probe of one call, and the tuples of tensors that transformers makes of its records."""

    model: CoreModel
    probe: NullProbe

    @classmethod
    def of(cls, model: CoreModel, hidden_states: bool, attentions: bool) -> RecordedOutputs:
        """What is asked for; with nothing, a probe that records nothing."""
        # Only what is asked for is recorded: a probe holds every tensor until the call is over.
        wanted: list[str] = []
        if hidden_states:
            wanted += _HIDDEN_STATES
        if attentions:
            wanted += _ATTENTIONS
        if not wanted:
            return cls(model, NO_PROBE)
        # As in transformers, gradients flow through what is returned.
        return cls(model, Probe(wanted, gradients=True))

    def of_encoder(self, stack: str = "encoder") -> dict[str, Tensors]:
        """Hidden states and attention weights of an encoder that stands alone.

        Its last hidden state is that before a final norm, unlike in all other models: such is
        transformers' order in ViT, CLIP and Wav2Vec2.
        """
        return self.of_stack(stack, last=residual_probes(self.model, stack)[-1])

    def of_stack(self, stack: str, prefix: str = "", last: str | None = None) -> dict[str, Tensors]:
        """Hidden states and self-attention weights of a stack, under the names of transformers."""
        outputs = {
            f"{prefix}hidden_states": self._hidden_states(stack, last or self._output(stack)),
            f"{prefix}attentions": self._attentions(stack, "self"),
        }
        return {name: tensors for name, tensors in outputs.items() if tensors is not None}

    def cross_attentions(self, stack: str) -> dict[str, Tensors]:
        """The cross-attention weights of a decoder."""
        weights = self._attentions(stack, "cross")
        if weights is None:
            return {}
        return {"cross_attentions": weights}

    def _hidden_states(self, stack: str, last: str) -> Tensors | None:
        """The embeddings, and the output of each layer; the last one is the probe `last`."""
        layers = self._output_layers(stack)
        embedded, *residuals = residual_probes(self.model, stack)
        names = [embedded, *(residuals[i] for i in layers[:-1]), last]
        if not isinstance(self.probe, Probe) or last not in self.probe.tensors:
            return None
        states = [self.probe.tensors[name] for name in names]
        if not self._is_reversible(stack):
            return tuple(states)
        # Of the two streams, transformers gives the second (Reformer).
        width = states[0].shape[-1]
        return tuple(state[..., -width:] for state in states)

    def _output(self, stack: str) -> str:
        """The probe of the last hidden state: after the final norm, but in reversible stacks."""
        if self._is_reversible(stack):
            return residual_probes(self.model, stack)[-1]
        return f"{stack}.output"

    def _output_layers(self, stack: str) -> list[int]:
        """The layers whose outputs are given: all, or the last of each stage (Swin)."""
        part = self.model.stacks()[stack]
        return part.output_layers if isinstance(part, Stack) else list(range(part.layers))

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
        names = [f"{stack}.{i}.{kind}" for i in self._output_layers(stack)]
        weights = [_weights(calls, name) for name in names if name in calls]
        # The sides of recurrent models have no self-attention.
        return tuple(weights) or None


def _weights(calls: dict[str, AttentionCall], name: str) -> Tensor:
    """The attention weights [B, H, T, S] of one layer, computed from the recorded arguments."""
    call = calls[name]
    if not isinstance(call.mixer, HasWeights):
        raise SettingError(
            f"{type(call.mixer).__name__} ({name}) does not compute attention weights",
            "remove output_attentions, or add a method `weights` to the kernel",
        )
    return call.weights()
