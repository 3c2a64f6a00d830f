"""regard bench"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from regard.cli.shared_options import WholeNumber, WholeNumbers

EXAMPLES = """\b
Examples:
  regard bench train --model small --against transformers --against nn.Transformer
  regard bench decode --model base --batch 1,32 --beam 1,5 --against ctranslate2
  regard bench forward --against transformers --json
  regard bench load --against transformers
  regard bench attention --kinds full,window,performer --lengths 2048,4096,8192 --json
"""
_SETTINGS = {"max_content_width": 110}
# Larger cases end by a lack of memory, or not within a day.
SIZE = WholeNumber(1, 1_000_000)
SIZES = WholeNumbers(1_000_000)
BEAMS = WholeNumbers(1000)


@click.group(epilog=EXAMPLES, context_settings=_SETTINGS)
def command() -> None:
    """Benchmark speed and memory on this machine against other libraries.

    All libraries get the same sizes and data and alternate within one run. Weights are random,
    since speed does not depend on them. Figures are medians ± half the range over the rounds.
    """


# ------------------------------------------------------------------ options


def _common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options that all benchmarks share."""
    # In reverse: decorators apply from the innermost outwards.
    for option in (
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="one JSON object per case or measurement",
        ),
        click.option(
            "--results",
            type=click.Path(dir_okay=False),
            help="Markdown file to record the result in (bench/RESULTS.md)",
        ),
        click.option(
            "--rounds",
            type=SIZE,
            default=None,
            help="rounds per contender after the first",
        ),
        click.option(
            "--threads", type=WholeNumber(1, 4096), default=None, help="CPU threads  [all cores]"
        ),
        click.option(
            "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N"
        ),
    ):
        function = option(function)
    return function


def _against_option(names: list[str], published: tuple[str, ...] = ()) -> Callable[..., Any]:
    """The --against option: libraries to measure, and those with published figures only."""
    # A peer that is not installed is an error when it is asked for, not here.
    text = "library to compare with (must be installed); repeatable"
    if published:
        text += f"; published figures only, for one case and machine: {', '.join(published)}"
    return click.option(
        "--against", multiple=True, type=click.Choice([*names, *published]), help=text
    )


# ------------------------------------------------------------------ training


@command.command(context_settings=_SETTINGS)
@click.option(
    "--model", "name", default="small", show_default=True, help="tiny, small, base or gpt2"
)
@click.option(
    "--lengths", type=click.Choice(["natural", "equal"]), default="natural", show_default=True,
    help="natural: 8 to 64 tokens as in real text; equal: --length tokens each",
)  # fmt: skip
@click.option(
    "--length", type=SIZE, default=32, show_default=True, help="sequence length for --lengths equal"
)
@click.option(
    "--batch-tokens",
    type=SIZE,
    default=2048,
    show_default=True,
    help="target tokens per batch",
)
@click.option("--batches", type=SIZE, default=4, show_default=True, help="batches per round")
@click.option(
    "--precision", type=click.Choice(["float32", "bf16"]), default="float32", show_default=True
)
@click.option("--compile", is_flag=True, help="torch.compile our blocks (GPU)")
@_against_option(
    ["nn.Transformer", "transformers", "x-transformers"],
    published=("nanoGPT", "nn.Transformer-compiled", "transformers-compiled"),
)
@_common_options
def train(name: str, against: tuple[str, ...], **flags: Any) -> None:
    """Training speed of an encoder–decoder or a language model: real target tokens per second.

    Other libraries are run on our batches and on batches as their own trainers make them.
    """
    device = _prepare(flags, against)
    from regard.lab.bench.train import TrainingCase, run

    keys = ("lengths", "length", "batch_tokens", "batches", "precision", "compile")
    settings: dict[str, Any] = {key: flags[key] for key in keys}
    case = TrainingCase(name, **settings | _rounds(flags))
    _print_report(run(case, list(against), device, _command_line()), flags)


# ------------------------------------------------------------------ inference


@command.command(context_settings=_SETTINGS)
@click.option(
    "--model", "name", default="base", show_default=True, help="tiny, small, base, gpt2 or llama-7b"
)
@click.option(
    "--batch",
    type=SIZES,
    default="1,32",
    show_default=True,
    help="batch size; several cases: 1,32",
)
@click.option(
    "--beam",
    type=BEAMS,
    default="1",
    show_default=True,
    help="beam size; 1 is greedy; several cases: 1,5",
)
@click.option(
    "--given",
    "prompt_length",
    type=SIZE,
    default=32,
    show_default=True,
    help="source or prompt length in tokens",
)
@click.option("--new", type=SIZE, default=64, show_default=True, help="new tokens to decode")
@click.option(
    "--memory",
    is_flag=True,
    help="also measure each contender's peak memory, in a separate process",
)
@_against_option(["transformers", "ctranslate2"], published=("transformers-compiled",))
@_common_options
def decode(
    name: str,
    batch: list[int],
    beam: list[int],
    prompt_length: int,
    new: int,
    memory: bool,
    against: tuple[str, ...],
    **flags: Any,
) -> None:
    """Decoding speed: new tokens per second (with a beam, of the best hypothesis)."""
    device = _prepare(flags, against)
    from regard.lab.bench.decode import DecodingCase, run

    # One report for each combination of beam width and batch size.
    for width in beam:
        for rows in batch:
            case = DecodingCase(name, rows, width, prompt_length, new, **_rounds(flags))
            report = run(case, list(against), device, _command_line(), memory=memory)
            _print_report(report, flags)


@command.command(context_settings=_SETTINGS)
@click.option("--model", "name", default="bert-base", show_default=True)
@click.option("--batch", type=SIZE, default=8, show_default=True)
@click.option("--length", type=SIZE, default=128, show_default=True)
@_against_option(["transformers"])
@_common_options
def forward(name: str, batch: int, length: int, against: tuple[str, ...], **flags: Any) -> None:
    """One encoder forward pass over a batch: tokens per second."""
    device = _prepare(flags, against)
    from regard.lab.bench.forward import ForwardCase, run

    # Rows of equal length without padding: both libraries do the same arithmetic.
    case = ForwardCase(name, batch, length, **_rounds(flags))
    _print_report(run(case, list(against), device, _command_line()), flags)


@command.command(context_settings=_SETTINGS)
@click.option("--model", "name", default="base", show_default=True)
@_against_option(["transformers"])
@_common_options
def load(name: str, against: tuple[str, ...], **flags: Any) -> None:
    """Startup of a fresh process up to its first translation: import, load the model, translate."""
    _prepare(flags, against)
    from regard.lab.bench.load import LoadingCase, run

    case = LoadingCase(name, **_rounds(flags))
    _print_report(run(case, list(against), _command_line()), flags)


# ------------------------------------------------------------------ attention alone


@command.command(context_settings=_SETTINGS)
@click.option(
    "--kinds",
    default="",
    help="full, window, longformer, bigbird, linear, performer, linformer, reformer, sized by the "
    "other flags; or with explicit sizes, as in regard train: window:128, dilated:64:2, "
    "topk:32  [all]",
)
@click.option("--lengths", type=SIZES, default="2048,4096,8192,16384,32768", show_default=True)
@click.option(
    "--heads", type=SIZE, default=8, show_default=True, help="heads of 64 dimensions each"
)
@click.option(
    "--window",
    type=SIZE,
    default=256,
    show_default=True,
    help="positions attended to on each side",
)
@_common_options
def attention(kinds: str, lengths: list[int], heads: int, window: int, **flags: Any) -> None:
    """Time and memory of each attention vs. sequence length: forward, backward, exponents."""
    device = _prepare(flags)
    from regard.lab.bench.attention import AttentionCase, choose, line, reports, run
    from regard.lab.bench.report import machine_name, write_section

    names = choose([name for name in kinds.split(",") if name])
    case = AttentionCase(names, tuple(lengths), heads, window=window, **_rounds(flags))
    measurements = []
    # Printed one by one: long sequences take minutes.
    for measurement in run(case, device):
        measurements.append(measurement)
        click.echo(json.dumps(measurement) if flags["as_json"] else line(measurement))
    if flags["results"]:
        for report in reports(case, measurements, _command_line(), machine_name(device)):
            write_section(Path(flags["results"]), report)


# ------------------------------------------------------------------ shared by all


def _prepare(flags: dict[str, Any], against: Sequence[str] = ()) -> Any:
    """Checks the peers, looks for other load, sets the threads, and returns the device."""
    # Kineto, the profiler that counts bytes, logs to standard error unless told not to, and reads
    # its log level when torch is imported.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch

    from regard.lab.bench.machine_load import load_note
    from regard.lab.bench.peers import require_installed
    from regard.models import choose_device

    # A process of its own would only say that it has ended.
    require_installed(against)
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


def _rounds(flags: dict[str, Any]) -> dict[str, int]:
    """The number of rounds, if the flag sets one; each benchmark has a default of its own."""
    if flags["rounds"] is None:
        return {}
    return {"rounds": flags["rounds"]}


def _command_line() -> str:
    """The command as it was typed, without the options that say where the result goes."""
    arguments = iter(sys.argv[1:])
    words = ["regard"]
    for argument in arguments:
        if argument == "--results":
            next(arguments, None)  # its value
        elif argument != "--json" and not argument.startswith("--results="):
            words.append(argument)
    return " ".join(words)


def _print_report(report: Any, flags: dict[str, Any]) -> None:
    """Prints a report, and adds it to the page of results if one is named."""
    if flags["load"] is not None:
        # The table says it as well: figures outlive the messages of their run.
        report = replace(report, notes={**report.notes, "busy:": flags["load"]})
    if flags["as_json"]:
        click.echo(json.dumps(report.as_json(), ensure_ascii=False))
    else:
        # An empty line after each report: there may be several.
        click.echo("\n".join([report.heading, *report.lines(), ""]))
    if flags["results"]:
        from regard.lab.bench.report import write_section

        write_section(Path(flags["results"]), report)
