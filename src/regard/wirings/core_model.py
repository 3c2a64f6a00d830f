"""What every model answers for itself: its inputs, front ends, stacks and heads, by name.

The wirings and the baselines speak it, so that nobody else asks which kind a model is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from regard.core.context import Context
from regard.core.heads.head import Head, LabelHead, LMHead, Pool, Reading
from regard.core.output import Inputs, Output, OutputOptions, Outputs
from regard.core.positions.positional_encoding import AxialPosition, LearnedPosition
from regard.core.side import FrontEnd, Side

if TYPE_CHECKING:
    from regard.core.frontends.lagged_values import Covariates
    from regard.spec import Input

H = TypeVar("H", bound=nn.Module)
# Pre-training with two heads at once: the other one is called by the name of its own class.
_BOTH = ("next", "choice")
# Their names end like that of a model without heads.
_MODELS_WITH_HEADS = (
    "HeadModel", "HeadsModel", "MTModel", "EncoderDecoderModel", "DecisionTransformerModel",
)  # fmt: skip
_LANGUAGE_MODELS = ("ForMaskedLM", "ForCausalLM", "ForConditionalGeneration", "LMHeadModel")

Split = Callable[[Tensor], Sequence[Tensor]]  # a sequence [B, T, …] in pieces


def bool_mask(inputs: Inputs, name: str = "attention_mask") -> Tensor | None:
    """Transformers' mask of this name, True at what is no padding, if there is one."""
    return inputs[name].bool() if name in inputs else None


class CoreModel(nn.Module, ABC):
    """A model of tensors, without a tokenizer. `forward` gives hidden states and auxiliary losses,
    what stands on top is applied to them.
    """

    # The arguments of its call, as transformers names and orders them; set by the builder.
    inputs: tuple[Input, ...] = ()
    _heads: tuple[str, ...] = ()

    @abstractmethod
    def stacks(self) -> dict[str, Side]:
        """The stacks, or what replaces them, by their probe names, in forward order."""

    def front_ends(self) -> dict[str, nn.Module]:
        """What makes vectors of the input of a stack, by the name of that stack."""
        return {}

    def positions_left(self, used: int) -> int | None:
        """How many of its learned positions the decoder has left; None where they have no end."""
        position = self.front_ends()["decoder"].position
        if isinstance(position, AxialPosition | LearnedPosition):
            return position.length - used
        return None

    def add_heads(self, heads: Mapping[str, nn.Module]) -> None:
        """Puts heads on the hidden states, each as a module of its name."""
        for name, head in heads.items():
            self.add_module(name, head)
        self._heads = (*self._heads, *heads)

    def heads(self) -> dict[str, nn.Module]:
        """The modules that stand on the hidden states, by their names in the model."""
        return {name: self.get_submodule(name) for name in self._heads}

    def part(self, kind: type[H]) -> H | None:
        """The head of this kind, if there is one."""
        return next((head for head in self.heads().values() if isinstance(head, kind)), None)

    def require(self, kind: type[H]) -> H:
        """The head of this kind, of a model that has one."""
        head = self.part(kind)
        assert head is not None, f"this model has no {kind.__name__}"
        return head

    @property
    def lm_head(self) -> Callable[[Tensor], Tensor] | None:
        """What makes logits over the vocabulary of hidden states [..., D], if there is one."""
        return self.part(LMHead)

    @property
    def writes(self) -> bool:
        """Whether it writes a text token by token: a `Generative` with a language-model head."""
        return False

    @property
    def reads_target(self) -> bool:
        """Whether it writes behind an encoder, and reads its target by teacher forcing."""
        return self.writes and "encoder" in self.stacks()

    def own_forecast(self, inputs: Tensor, side_inputs: Inputs, context: Context) -> Tensor | None:
        """What its decoder reads where no target is given, if that needs no search: a forecast."""
        return None

    def sample(
        self, values: Tensor, observed: Tensor | None, covariates: Covariates, *, count: int
    ) -> Tensor:
        """Trajectories [B, count, H, C] that are drawn from the distributions of a forecast."""
        raise NotImplementedError

    @abstractmethod
    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        """The hidden states of the last stack [B, T, D], of inputs by name."""

    def head_output(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        """What the head makes of hidden states: logits, forecasts, a vector; without a head they
        are as they were."""
        parts = [head for head in self.heads().values() if isinstance(head, Head)]
        # A pooled vector answers where no other head does.
        parts.sort(key=lambda head: isinstance(head, Pool))
        if not parts:
            return hidden
        reading = self.reading(inputs)
        return reading.front.of_inputs(parts[0].prediction(hidden, reading))

    def classes(
        self, hidden: Tensor, padding_mask: Tensor | None = None, inputs: Tensor | None = None
    ) -> Tensor:
        """Logits of the labels: [B, T, count] if each token has one, else [B, count]. A pool that
        looks for the end token needs the `inputs`."""
        reading = Reading(inputs, padding_mask, self._front, self.part(Pool))
        return reading.front.of_inputs(self.require(LabelHead).prediction(hidden, reading))

    def reading(self, inputs: Inputs, options: OutputOptions | None = None) -> Reading:
        """What heads may ask of a call."""
        options = options or OutputOptions()
        mask = bool_mask(inputs)
        return Reading(
            self._main(inputs), mask, self._front, self.part(Pool), inputs, options=options
        )

    @property
    def _front(self) -> Any:
        """The front end of the first input."""
        return next(iter(self.front_ends().values()), FrontEnd())

    def named(self, hidden: Tensor, reading: Reading) -> Outputs:
        """Hidden states [B, T, D], and what the wanted heads say of them."""
        options = reading.options
        parts = [head for head in self.heads().values() if isinstance(head, Head)]
        heads = [head for head in parts if not isinstance(head, Pool)]
        bare = not heads or options.ends_with("Model", "WithProjection")
        bare = bare and not options.ends_with(*_MODELS_WITH_HEADS)
        if not options.everything:
            heads = [] if bare else self._of_architecture(heads, options)
        lm_head = any(isinstance(head, LMHead) for head in heads)
        next_sentence = any(isinstance(head, LabelHead) and head.task == "next" for head in heads)
        reading.pretrains = lm_head and next_sentence
        pools = [reading.pool] if reading.pool is not None else []
        shown = [*pools, *heads] if bare or options.everything else heads
        outputs: Outputs = {}
        for head in shown:
            if head.leads:
                outputs |= head.named_outputs(hidden, reading)
        if bare or options.everything:
            states = hidden if self.reads_target else reading.front.states(hidden, reading.inputs)
            outputs["last_hidden_state"] = Output(states, reading.positions)
        for head in shown:
            if not head.leads:
                outputs |= head.named_outputs(hidden, reading)
        return outputs

    def _of_architecture(self, heads: list[Head], options: OutputOptions) -> list[Head]:
        """One file of weights may hold the heads of a language model and of labels."""
        labels = self.part(LabelHead)
        lm_head = self.part(LMHead)
        if labels is None or lm_head is None:
            return heads
        if options.ends_with(*_LANGUAGE_MODELS):
            return [lm_head]
        if labels.task not in _BOTH or options.ends_with("ForNextSentencePrediction"):
            return [labels]
        return heads

    def outputs(self, inputs: Inputs, options: OutputOptions) -> Outputs:
        """The outputs of inputs by name, under the names and in the order of transformers."""
        hidden = self.hidden_states(inputs, options.context)  # [B, T, D]
        return self.named(hidden, self.reading(inputs, options))

    def step_by_step(self, inputs: Inputs, split: Split) -> Outputs:
        """What decoding from caches gives, in pieces of the sequence that it is given; {} of a
        model without caches."""
        return {}

    def check_values(self, inputs: Inputs) -> None:
        """Refuses numbers that the model cannot read; asking for them waits for the device."""

    def _main(self, inputs: Inputs) -> Tensor:
        """The first input."""
        return inputs[self.inputs[0].name]


class Function(nn.Module):
    """Adapter for exporters, which take a module of tensors: a model and one call of it."""

    def __init__(self, model: nn.Module, call: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.call(self.model, *inputs)
