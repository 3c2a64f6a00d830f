"""Decoding options that several commands share, and the strategy that their values stand for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from regard.cli.shared_options import (
    COUNT,
    INDEX,
    SEED,
    SHARE,
    Number,
    device_option,
    flag,
    option,
    options,
    refuse_flags,
)
from regard.system.errors import SettingError

if TYPE_CHECKING:
    from regard.decode.strategy import Limit, Strategy

SAMPLING_FLAGS = ("temperature", "top_k", "top_p", "min_p", "seed")
# Of the parameters of `decoding_options`, those that say how to decode, and in which precision.
DECODING_FLAGS = (
    "beam", "penalty", "n_best", "sample", *SAMPLING_FLAGS, "limit", "batch_tokens",
)  # fmt: skip
# Bounds of --max-length FACTOR,EXTRA; translations of usual lengths are far below them.
MOST_FACTOR = 1_000
MOST_EXTRA = 1_000_000
DEFAULT_BEAM = 4  # with α = 0.6, as in Section 6.1 of the paper
DEFAULT_LENGTH_PENALTY = "gnmt:0.6"

# Defaults are None throughout: only then can a flag that was set be told from one that was not,
# and the model folder's generation_config.json apply where no flag says otherwise.
sampling_options = options(
    option("--temperature", "sampling: the logits are divided by it; 0 is greedy  [1]", Number()),
    option("--top-k", "sampling: only the K most likely tokens  [all]", INDEX),
    option("--top-p", "sampling: smallest set of tokens with this total probability  [1]", SHARE),
    option(
        "--min-p", "sampling: minimum probability relative to the most likely token  [0]", SHARE
    ),
    option("--seed", "sampling: random seed  [0]", SEED),
)
# Of translation, whose default is beam search.
_search_options = options(
    option("--beam", "beam size; 1 is greedy  [the model's setting, or 4]", COUNT),
    option(
        "--length-penalty penalty",
        "gnmt:A divides log P by ((5+n)/6)^A, power:A by n^A; n counts tokens including the "
        "end token  [the model's setting, or gnmt:0.6]",
    ),
    flag("--sample", "sample instead of beam search"),
)
_n_best_option = option("--n-best", "number of translations per line  [1]", COUNT)
_length_option = option(
    "--max-length limit",
    "maximum output length FACTOR,EXTRA: FACTOR × source length + EXTRA  "
    "[the model's setting, or 1,50]",
)
# Of beam search, sampling, lengths, quantization and device.
decoding_options = options(
    _search_options,
    _n_best_option,
    sampling_options,
    _length_option,
    # The next two change neither the strategy nor, apart from --quantize, the result.
    option("--batch-tokens", "batch size in positions", COUNT, default=4096),
    option(
        "--quantize",
        "quantize the weights: faster, slightly less accurate; int8 on CPU only  [float32]",
        click.Choice(["int8", "bf16"]),
    ),
    device_option,
)
# Of decoding one input once: no batches, no n-best list.
one_output_options = options(_search_options, sampling_options, _length_option, device_option)


# ------------------------------------------------------------------ from flags to settings


def decoding_strategy(flags: Mapping[str, Any]) -> Strategy | None:
    """The decoding strategy of the shared flags; None where no flag asks for one.

    Flags that belong to another strategy are an error instead of being ignored.
    """
    from regard.decode.strategy import BeamSearch, Greedy, parse_length_penalty, sampling

    beam = flags["beam"]
    penalty = flags["penalty"]
    n_best = flags.get("n_best")
    if flags["sample"]:
        refuse_flags(("beam", "penalty", "n_best"), "--sample does not use beam search")
        return sampling(**_sampling_settings(flags))
    refuse_flags(SAMPLING_FLAGS, "only applies to sampling", "add --sample")
    # A beam of one hypothesis is greedy search, which is faster.
    if beam == 1 and n_best is None:
        refuse_flags(("penalty",), "has no effect with --beam 1 (greedy search)")
        return Greedy()
    if beam is None and penalty is None and n_best is None:
        return None  # generation_config.json decides
    penalty = parse_length_penalty(penalty or DEFAULT_LENGTH_PENALTY)
    return BeamSearch(beam or DEFAULT_BEAM, penalty, n_best or 1)


def generation_strategy(
    greedy: bool, beam: int | None, flags: Mapping[str, Any]
) -> Strategy | None:
    """The decoding strategy of a language model: sampling, unless --greedy or --beam is given.

    None where no flag says anything.
    """
    from regard.decode.strategy import BeamSearch, Greedy, sampling

    if not greedy and beam is None:
        settings = _sampling_settings(flags)
        return sampling(**settings) if settings else None
    repair = "leave it out, or leave out --greedy and --beam"
    refuse_flags(SAMPLING_FLAGS, "only applies to sampling", repair)
    if beam in (None, 1):
        return Greedy()
    if greedy:
        raise SettingError("--greedy and --beam cannot be combined", "give one of them")
    return BeamSearch(beam)


def length_limit(text: str | None) -> Limit | None:
    """The length limit that --max-length FACTOR,EXTRA stands for."""
    from regard.decode.strategy import Limit

    if text is None:
        return None
    with suppress(ValueError):
        # The paper's limit is input length + 50 (Section 6.1): 1,50.
        factor, extra = text.split(",")
        limit = Limit(float(factor), int(extra))
        is_within = 0 <= limit.factor <= MOST_FACTOR and 0 <= limit.extra <= MOST_EXTRA
        if is_within and limit.factor + limit.extra > 0:
            return limit
    raise SettingError(
        f"--max-length {text!r} is not FACTOR,EXTRA",
        f"write it like 1,50; at most {MOST_FACTOR},{MOST_EXTRA}, and not 0,0",
    )


def _sampling_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling flags that were set, as arguments of `Sampling`."""
    return {key: flags[key] for key in SAMPLING_FLAGS if flags[key] is not None}
