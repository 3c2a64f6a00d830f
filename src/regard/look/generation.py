"""Decoding one input, with heads ablated or watched step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from regard.core.probe import Probe
from regard.decode.batch_decoding import DecodingSettings, decode
from regard.decode.events import StepCallback
from regard.decode.limits import require_memory
from regard.decode.strategy import BeamSearch, Hypothesis, Strategy, choose_strategy
from regard.look.inspectable import Input, Inspectable, decoder_start, read_input
from regard.look.probe_names import Head, switched_off
from regard.look.views import other_views
from regard.system.errors import SettingError
from regard.wirings.generative import Generative


def translate(
    model: Inspectable,
    text: Input,
    settings: Strategy | DecodingSettings | None = None,
    *,
    off: Sequence[Head] = (),
    watch: StepCallback | None = None,
) -> list[Hypothesis]:
    """The hypotheses that a model decodes after one input, best first; the default is beam search.

    `off` are heads to ablate, `watch` is called at every decoding step.
    """
    core = model.model
    settings = decoding_settings(settings, BeamSearch())
    reading = read_input(model, text)
    if not isinstance(core, Generative) or reading.special_tokens is None:
        raise SettingError("this model does not generate text", other_views(model))
    # Token ids are decoded as a list, features of sound as a tensor.
    source: Any = reading.inputs[0]
    if not source.is_floating_point():
        source = source.tolist()
    used = decoder_start(reading.special_tokens) if core.reads_target else source
    left = core.positions_left(len(used))
    # A learned table has no vector beyond its end.
    if left is not None:
        settings = replace(settings, limit=replace(settings.limit, maximum=max(1, left)))
    require_memory(settings.strategy, model.spec, settings.limit(len(source)))
    if off:
        settings = replace(settings, probe=Probe(edits=switched_off(core, off)))
    return decode(core, [source], reading.special_tokens, settings, on_step=watch)[0]


def decoding_settings(
    strategy: Strategy | DecodingSettings | None, default: Strategy
) -> DecodingSettings:
    """The settings that were given, or those of a strategy."""
    if isinstance(strategy, DecodingSettings):
        return strategy
    return DecodingSettings(choose_strategy(strategy, {}) or default)


def written(model: Inspectable, hypothesis: Hypothesis) -> str:
    """The text of a hypothesis."""
    return model.output_tokenizer.decode(hypothesis.tokens)
