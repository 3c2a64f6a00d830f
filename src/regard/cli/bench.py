"""regard bench"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from regard.cli.shared_options import (
    FILE,
    Flags,
    WholeNumber,
    WholeNumbers,
    device_option,
    flag,
    json_option,
    json_text,
    option,
    options,
    print_result,
)

Case = TypeVar("Case")
EXAMPLES = """\b
Examples:
  regard bench train --model small --against transformers --against nn.Transformer
  regard bench decode --model base --batch 1,32 --beam 1,5 --against ctranslate2
  regard bench forward --against transformers --json
  regard bench load --against transformers
  regard bench attention --kinds full,window,performer --lengths 2048,4096,8192 --json
"""
# Larger cases end by a lack of memory, or not within a day.
SIZE = WholeNumber(1, 1_000_000)
SIZES = WholeNumbers(1, 1_000_000)
BEAMS = WholeNumbers(1, 1000)


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Benchmark speed and memory on this machine against other libraries.

    All libraries get the same sizes and data and alternate within one run. Weights are random,
    since speed does not depend on them. Figures are medians ± half the range over the rounds.
    """


# ------------------------------------------------------------------ options


# Those that all benchmarks share.
_common_options = options(
    device_option,
    option("--threads", "CPU threads  [all cores]", WholeNumber(1, 4096)),
    option("--rounds", "rounds per contender after the first", SIZE),
    option("--results", "Markdown file to record the result in (bench/RESULTS.md)", FILE),
    json_option("one JSON object per case or measurement"),
)


def _options(
    default_model: str, models: str, against: tuple[str, ...], published: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """Decorator: the options of a comparison of one model with other libraries.

    `against` names those that can be measured, `published` those with published figures only.
    """
    # A peer that is not installed is an error when it is asked for, not here.
    text = "library to compare with (must be installed); repeatable"
    if published:
        text += f"; published figures only, for one case and machine: {', '.join(published)}"
    return options(
        option("--model", models, default=default_model),
        option("--against", text, click.Choice([*against, *published]), multiple=True),
        _common_options,
    )


# ------------------------------------------------------------------ training and inference


@command.command()
@option(
    "--lengths",
    "natural: 8 to 64 tokens as in real text; equal: --length tokens each",
    click.Choice(["natural", "equal"]),
    default="natural",
)
@option("--length", "sequence length for --lengths equal", SIZE, default=32)
@option("--batch-tokens", "target tokens per batch", SIZE, default=2048)
@option("--batches", "batches per round", SIZE, default=4)
@option("--precision", "of the computation", click.Choice(["float32", "bf16"]), default="float32")
@flag("--compile", "torch.compile our blocks (GPU)")
@_options(
    "small",
    "tiny, small, base or gpt2",
    ("nn.Transformer", "transformers", "x-transformers"),
    published=("nanoGPT", "nn.Transformer-compiled", "transformers-compiled"),
)
def train(**flags: Any) -> None:
    """Training speed of an encoder–decoder or a language model: real target tokens per second.

    Other libraries are run on our batches and on batches as their own trainers make them.
    """
    device = _prepare(flags)
    from regard.lab.bench.train import TrainingCase, run

    case = _case(TrainingCase, flags)
    _print_report(run(case, list(flags["against"]), device, _command_line()), flags)


@command.command()
@option("--batch", "batch size; several cases: 1,32", SIZES, default="1,32")
@option("--beam", "beam size; 1 is greedy; several cases: 1,5", BEAMS, default="1")
@option("--given prompt_length", "source or prompt length in tokens", SIZE, default=32)
@option("--new", "new tokens to decode", SIZE, default=64)
@flag("--memory", "also measure each contender's peak memory, in a separate process")
@_options(
    "base",
    "tiny, small, base, gpt2 or llama-7b",
    ("transformers", "ctranslate2"),
    published=("transformers-compiled",),
)
def decode(batch: list[int], beam: list[int], memory: bool, **flags: Any) -> None:
    """Decoding speed: new tokens per second (with a beam, of the best hypothesis)."""
    device = _prepare(flags)
    from regard.lab.bench.decode import DecodingCase, run

    # One report for each combination of beam width and batch size.
    for width in beam:
        for rows in batch:
            case = _case(DecodingCase, flags | {"batch": rows, "beam": width})
            report = run(case, list(flags["against"]), device, _command_line(), memory=memory)
            _print_report(report, flags)


@command.command()
@option("--batch", "sequences", SIZE, default=8)
@option("--length", "tokens of each", SIZE, default=128)
@_options("bert-base", "bert-base", ("transformers",))
def forward(**flags: Any) -> None:
    """One encoder forward pass over a batch: tokens per second."""
    device = _prepare(flags)
    from regard.lab.bench.forward import ForwardCase, run

    # Rows of equal length without padding: both libraries do the same arithmetic.
    case = _case(ForwardCase, flags)
    _print_report(run(case, list(flags["against"]), device, _command_line()), flags)


@command.command()
@_options("base", "tiny, small, base or gpt2", ("transformers",))
def load(**flags: Any) -> None:
    """Startup of a fresh process up to its first translation: import, load the model, translate."""
    _prepare(flags)
    from regard.lab.bench.load import LoadingCase, run

    _print_report(run(_case(LoadingCase, flags), list(flags["against"]), _command_line()), flags)


# ------------------------------------------------------------------ attention alone


@command.command()
@option(
    "--kinds",
    "full, window, longformer, bigbird, linear, performer, linformer, reformer, sized by the "
    "other flags; or with explicit sizes, as in regard train: window:128, dilated:64:2, "
    "topk:32  [all]",
)
@option("--lengths", "sequence lengths", SIZES, default="2048,4096,8192,16384,32768")
@option("--heads", "heads of 64 dimensions each", SIZE, default=8)
@option("--window", "positions attended to on each side", SIZE, default=256)
@_common_options
def attention(kinds: str | None, lengths: list[int], **flags: Any) -> None:
    """Time and memory of each attention vs. sequence length: forward, backward, exponents."""
    device = _prepare(flags)
    from regard.lab.bench.attention import AttentionCase, choose, line, reports, run
    from regard.lab.bench.report import machine_name, write_section

    names = choose([name for name in (kinds or "").split(",") if name])
    case = _case(AttentionCase, flags | {"kinds": names, "lengths": tuple(lengths)})
    measurements = []
    # Printed one by one: long sequences take minutes.
    for measurement in run(case, device):
        measurements.append(measurement)
        click.echo(json_text(measurement) if flags["as_json"] else line(measurement))
    if flags["results"]:
        for report in reports(case, measurements, _command_line(), machine_name(device)):
            write_section(Path(flags["results"]), report)


# ------------------------------------------------------------------ shared by all


def _prepare(flags: Flags) -> Any:
    """Checks the peers, looks for other load, sets the threads, and returns the device."""
    # Kineto, the profiler that counts bytes, logs to standard error unless told not to, and reads
    # its log level when torch is imported.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch

    from regard.lab.bench.machine_load import load_note
    from regard.lab.bench.peers import require_installed
    from regard.models import choose_device

    # A process of its own would only say that it has ended.
    require_installed(flags.get("against", ()))
    flags["load"] = load_note()
    if flags["load"] is not None:
        print(
            f"warning: this machine is busy: {flags['load']}\n"
            "  → figures will be too low and noisy; run again when the machine is idle",
            file=sys.stderr,
        )
    # Without the flag, PyTorch's default: all cores.
    if flags["threads"]:
        torch.set_num_threads(flags["threads"])
    return choose_device(flags["device"])


def _case(kind: Callable[..., Case], flags: Flags) -> Case:
    """The case of the flags; each benchmark has a default number of rounds of its own."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: flags[name] for name in names if flags.get(name) is not None})


def _command_line() -> str:
    """The command as it was typed, without the options that say where the result goes."""
    return re.sub(r" --(json|results[ =]\S*)", "", " ".join(["regard", *sys.argv[1:]]))


def _print_report(report: Any, flags: Flags) -> None:
    """Prints a report, and adds it to the page of results if one is named."""
    if flags["load"] is not None:
        # The table says it as well: figures outlive the messages of their run.
        report = replace(report, notes={**report.notes, "busy:": flags["load"]})
    # An empty line after each report: there may be several.
    print_result(flags["as_json"], report.as_json(), [report.heading, *report.lines(), ""])
    if flags["results"]:
        from regard.lab.bench.report import write_section

        write_section(Path(flags["results"]), report)
