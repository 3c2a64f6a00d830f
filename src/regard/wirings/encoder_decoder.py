"""The encoder–decoder (Vaswani et al. 2017).

`forward` follows Figure 1 of the paper from bottom to top.
"""

# Letters of shapes: B rows of a batch, S source and T target positions, D d_model, V vocabulary.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from regard.core.caches.kv_cache import DecoderState
from regard.core.context import AuxiliaryLosses, Context
from regard.core.encoder_output import EncoderOutput
from regard.core.heads.head import Pool, Reading
from regard.core.output import Inputs, Output, OutputOptions, Outputs
from regard.core.side import FrontEnd, Side
from regard.system.errors import SettingError
from regard.wirings.core_model import Split, bool_mask
from regard.wirings.generative import Generative


class EncoderDecoder(Generative):
    """Encoder–decoder (Figure 1 of the paper); its sides may also be recurrent or convolutional."""

    padding_side = "right"  # of the shorter rows in a batch of sources

    def __init__(
        self,
        source: FrontEnd,
        target: FrontEnd,
        encoder: Side,
        decoder: Side,
        heads: Mapping[str, nn.Module],
        project: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.source = source
        self.target = target
        self.encoder = encoder
        self.decoder = decoder
        self.project = project  # of what the encoder gives, where the decoder is of another width
        self.add_heads(heads)

    def stacks(self) -> dict[str, Side]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def front_ends(self) -> dict[str, nn.Module]:
        return {"encoder": self.source, "decoder": self.target}

    def encode(
        self, source: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> EncoderOutput:
        """source [B, S] token ids, [B, mels, N] frames of sound or [B, 3, H, W] pixels → hidden
        states [B, S, D]; `padding_mask` is True at tokens or pixels, False at padding."""
        context = replace(
            context or Context(), added=self.source.added_positions(source, padding_mask)
        )
        # Convolutions of a front end shorten the sequence, and its mask with it.
        padding_mask = self.source.output_padding_mask(padding_mask)
        x = self.source(source, None, context)  # [B, S, D]
        return context.output(self.encoder(x, padding_mask, context.scope("encoder")), padding_mask)

    def decode(
        self,
        target: Tensor | None,
        memory: EncoderOutput,
        context: Context | None = None,
        padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Teacher forcing: target [B, T] token ids → hidden states [B, T, D]. Object queries read
        no target, and are as many whatever the memory is.

        Position t attends to targets up to t and to the whole memory. Padding on the right needs no
        mask: the causal mask hides it from all tokens before.
        """
        read = memory.hidden if target is None else target
        context = (context or Context()).target()
        context.added = self.target.added_positions(read, padding_mask)
        x = self.target(read, None, context)  # [B, T, D]
        return self.decoder(x, padding_mask, context, self._projected(memory))

    def _projected(self, memory: EncoderOutput) -> EncoderOutput:
        """What the decoder reads: [B, S, D], of the encoder's own width before."""
        if self.project is None:
            return memory
        return memory._replace(hidden=self.project(memory.hidden))

    def forward(
        self,
        source: Tensor,
        target: Tensor | None = None,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
    ) -> tuple[Tensor, AuxiliaryLosses]:
        """Hidden states [B, T, D], which heads read, and auxiliary losses."""
        context = context or Context()
        memory = self.encode(source, padding_mask, context)
        hidden = self.decode(target, memory, context)
        return hidden, dict(context.losses or {})

    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        memory = self.encode(self._main(inputs), self._source_mask(inputs), context)
        memory = self.visible_memory(memory, inputs)
        return self.decode(inputs.get("decoder_input_ids"), memory, context)

    def visible_memory(self, memory: EncoderOutput, inputs: Inputs) -> EncoderOutput:
        """The memory with what each target sees of it: all."""
        return memory

    def _source_mask(self, inputs: Inputs) -> Tensor | None:
        return bool_mask(inputs, self.source.mask_name)

    def reading(self, inputs: Inputs, options: OutputOptions | None = None) -> Reading:
        # Heads stand on the hidden states of the targets.
        mask = bool_mask(inputs, "decoder_attention_mask")
        return replace(super().reading(inputs, options), padding_mask=mask, front=self.target)

    def outputs(self, inputs: Inputs, options: OutputOptions) -> Outputs:
        # Whisper attends to its spectrogram as a whole, silence included, as it did in training.
        mask = None if "input_features" in inputs else self._source_mask(inputs)
        encoded = self.visible_memory(
            self.encode(self._main(inputs), mask, options.context), inputs
        )
        reading = self.reading(inputs, options)
        target = inputs.get("decoder_input_ids")
        hidden = self.decode(target, encoded, options.context, reading.padding_mask)  # [B, T, D]
        outputs = self.named(hidden, reading)
        outputs["encoder_last_hidden_state"] = Output(encoded.hidden, encoded.padding_mask)
        return outputs

    def step_by_step(self, inputs: Inputs, split: Split) -> Outputs:
        if not self.writes:
            return {}
        encoded = self.encode(self._main(inputs))
        return self._steps(encoded, inputs["decoder_input_ids"], split)

    def check_values(self, inputs: Inputs) -> None:
        """A row without the end token at which a classifier reads."""
        pool = self.part(Pool)
        end = pool.end if pool is not None else None
        if end is not None and not bool((self._main(inputs) == end).any(dim=1).all()):
            raise SettingError(
                f"a row of input_ids has no end token ({end}), where the class is predicted",
                "end each row of input_ids with it",
            )

    def start(self, memory: EncoderOutput, *, width: int = 1, capacity: int) -> DecoderState:
        rows = len(memory.hidden) * width
        caches = self.decoder.start(rows, capacity, self._projected(memory))
        return DecoderState(caches, width, memory.padding_mask, probe=memory.probe)
