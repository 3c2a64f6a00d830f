"""Decoding options that several commands share, and the strategy that their values stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from regard.cli.shared_options import COUNT, INDEX, SEED, SHARE, Number, device_option
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
_SAMPLING_OPTIONS = [
    click.option(
        "--temperature",
        type=Number(),
        help="sampling: temperature that divides the logits  [1]",
    ),
    click.option("--top-k", type=INDEX, help="sampling: only the K most likely tokens  [all]"),
    click.option(
        "--top-p",
        type=SHARE,
        help="sampling: smallest set of tokens with this total probability  [1]",
    ),
    click.option(
        "--min-p",
        type=SHARE,
        help="sampling: minimum probability relative to the most likely token  [0]",
    ),
    click.option("--seed", type=SEED, help="sampling: random seed  [0]"),
]
# Of translation, whose default is beam search.
_SEARCH_OPTIONS = [
    click.option(
        "--beam",
        type=COUNT,
        help="beam size; 1 is greedy  [the model's setting, or 4]",
    ),
    click.option(
        "--length-penalty",
        "penalty",
        help="gnmt:A divides log P by ((5+n)/6)^A, power:A by n^A; n counts tokens including the "
        "end token  [the model's setting, or gnmt:0.6]",
    ),
    click.option("--sample", is_flag=True, help="sample instead of beam search"),
]
_N_BEST_OPTION = click.option("--n-best", type=COUNT, help="number of translations per line  [1]")
_LENGTH_OPTION = click.option(
    "--max-length",
    "limit",
    help="maximum output length FACTOR,EXTRA: FACTOR × source length + EXTRA  "
    "[the model's setting, or 1,50]",
)
# These change neither the strategy nor, apart from --quantize, the result.
_RUNTIME_OPTIONS = [
    click.option(
        "--batch-tokens",
        type=COUNT,
        default=4096,
        help="batch size in positions",
    ),
    click.option(
        "--quantize",
        type=click.Choice(["int8", "bf16"]),
        help="quantize the weights: faster, slightly less accurate; int8 on CPU only  [float32]",
    ),
]


# ------------------------------------------------------------------ decorators


def decoding_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options of beam search, sampling, lengths, quantization and device."""
    options = [
        *_SEARCH_OPTIONS,
        _N_BEST_OPTION,
        *_SAMPLING_OPTIONS,
        _LENGTH_OPTION,
        *_RUNTIME_OPTIONS,
        device_option,
    ]
    return _decorate(command, options)


def one_output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options of decoding one input once: no batches, no n-best list."""
    options = [*_SEARCH_OPTIONS, *_SAMPLING_OPTIONS, _LENGTH_OPTION, device_option]
    return _decorate(command, options)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options of sampling alone."""
    return _decorate(command, _SAMPLING_OPTIONS)


def _decorate(command: Callable[..., Any], options: list[Callable[..., Any]]) -> Callable[..., Any]:
    # Decorators apply from the innermost outwards, so that the help lists them in reverse.
    for option in reversed(options):
        command = option(command)
    return command


# ------------------------------------------------------------------ from flags to settings


def decoding_strategy(flags: Mapping[str, Any]) -> Strategy | None:
    """The decoding strategy of the shared flags; None where no flag asks for one.

    Flags that belong to another strategy are an error instead of being ignored.
    """
    from regard.decode.length_penalty import parse_length_penalty
    from regard.decode.strategy import BeamSearch, Greedy, Sampling

    beam = flags["beam"]
    penalty = flags["penalty"]
    n_best = flags.get("n_best")
    sampling = _sampling_settings(flags)
    if flags["sample"]:
        if not (beam is None and penalty is None and n_best is None):
            raise SettingError(
                "--sample does not use beam search",
                "leave out --beam, --length-penalty and --n-best",
            )
        return Sampling(**sampling)
    if sampling:
        raise SettingError(f"{_first_flag(sampling)} only applies to sampling", "add --sample")
    # A beam of one hypothesis is greedy search, which is faster.
    if beam == 1 and n_best is None:
        if penalty is not None:
            raise SettingError(
                "--length-penalty has no effect with --beam 1 (greedy search)",
                "leave it out, or use a larger beam",
            )
        return Greedy()
    if beam is None and penalty is None and n_best is None:
        return None  # generation_config.json decides
    if beam is None:
        beam = DEFAULT_BEAM
    if n_best is None:
        n_best = 1
    return BeamSearch(beam, parse_length_penalty(penalty or DEFAULT_LENGTH_PENALTY), n_best)


def generation_strategy(
    greedy: bool, beam: int | None, flags: Mapping[str, Any]
) -> Strategy | None:
    """The decoding strategy of a language model: sampling, unless --greedy or --beam is given.

    None where no flag says anything.
    """
    from regard.decode.strategy import BeamSearch, Greedy, Sampling

    sampling = _sampling_settings(flags)
    if not greedy and beam is None:
        return Sampling(**sampling) if sampling else None
    if sampling:
        raise SettingError(
            f"{_first_flag(sampling)} only applies to sampling",
            "leave it out, or leave out --greedy and --beam",
        )
    if greedy and beam not in (None, 1):
        raise SettingError("--greedy and --beam cannot be combined", "give one of them")
    if greedy or beam == 1:
        return Greedy()
    return BeamSearch(DEFAULT_BEAM if beam is None else beam)


def length_limit(text: str | None) -> Limit | None:
    """The length limit that --max-length FACTOR,EXTRA stands for."""
    from regard.decode.strategy import Limit

    if text is None:
        return None
    try:
        # The paper's limit is input length + 50 (Section 6.1): 1,50.
        factor, extra = text.split(",")
        limit = Limit(float(factor), int(extra))
    except ValueError:
        raise SettingError(
            f"--max-length {text!r} is not FACTOR,EXTRA", "write it like 1,50"
        ) from None
    # Written so that nan is refused as well.
    is_within = 0 <= limit.factor <= MOST_FACTOR and 0 <= limit.extra <= MOST_EXTRA
    if not is_within or limit.factor == limit.extra == 0:
        raise SettingError(
            f"--max-length {text!r} is out of range",
            f"give at most {MOST_FACTOR},{MOST_EXTRA}, and not 0,0; 1,50 is usual",
        )
    return limit


def _sampling_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling flags that were set, as arguments of `Sampling`."""
    return {key: flags[key] for key in SAMPLING_FLAGS if flags[key] is not None}


def _first_flag(settings: Mapping[str, Any]) -> str:
    """The first of some settings, as it is typed: `top_k` → `--top-k`."""
    return "--" + next(iter(settings)).replace("_", "-")
