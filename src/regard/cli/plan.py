"""regard plan"""

from __future__ import annotations

from typing import Any

import click

from regard.cli.completion import Suggested, preset_names, recipe_names
from regard.cli.shared_options import (
    COUNT,
    FLOPS,
    Number,
    WholeNumber,
    json_option,
    json_text,
    refuse_flags,
    refuse_other_flags,
)
from regard.system.errors import SettingError
from regard.system.memory import amount

EXAMPLES = """\b
Examples:
  regard plan transformer:base
  regard plan gpt3:175b --device A100 --devices 1024 --precision bf16 --tokens 300e9
  regard plan wmt14_base --device H100
  regard plan llama:7b --device H100 --precision bf16 --length 2048
  regard plan path/to/config.json --batch 16 --length 512 --json
  regard plan gpt2:small --batch 2 --length 256 --measure
  regard plan --flops 1e21
  regard plan --task translate --examples 30000
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", type=Suggested([*recipe_names(), *preset_names()], "file"), required=False)
@click.option("--device", default="auto",
              help="cpu or cuda (timed on this machine), or a known device: A100, H100, H200, "
              "B200, L4, T4, V100, RTX4090, TPUv4, TPUv5e, TPUv5p")  # fmt: skip
@click.option("--devices", type=COUNT, default=1, help="number of devices")
@click.option("--batch", type=COUNT, help="sequences per micro-batch")
@click.option("--length", type=COUNT, help="sequence length in positions")
@click.option("--tokens", type=Number(1), help="total training positions")
@click.option("--precision", type=click.Choice(["float32", "tf32", "bf16", "fp16"]))
@click.option("--accumulate", type=COUNT, help="micro-batches per update")
@click.option(
    "--gradient-checkpointing", is_flag=True, default=None, help="activation checkpointing"
)
@click.option(
    "--vocabulary",
    type=WholeNumber(1, 5_000_000),
    help="vocabulary size, or number of image classes",
)
@click.option("--price", type=Number(), help="price in dollars per device-hour")
@click.option("--utilization", type=Number(0.0001, 1),
              help="assume this MFU (0 to 1) instead of a roofline model")  # fmt: skip
@click.option(
    "--measure", is_flag=True, help="also run the step here and compare it with the prediction"
)
@click.option(
    "--flops", type=FLOPS, help="the compute-optimal model size for this budget (Chinchilla)"
)
@click.option("--task", help="recommend a model: translate, classify, causal, images, …")
@click.option(
    "--examples", type=WholeNumber(1, 10**18), help="with --task: number of training examples"
)
@json_option("print JSON (an array for --flops)")
def command(model: str | None, as_json: bool, **options: Any) -> None:
    """Estimate the cost of a training run: parameters, FLOPs, memory, time, money; what would fit.

    MODEL is a recipe, a preset NAME[:SIZE], a config.json, a spec file or a model folder. Nothing
    is trained and no weights are read: one training step is traced with fake tensors, which have
    shapes but no memory.
    """
    # Two questions that need no MODEL, each answered by itself.
    if options["flops"] is not None:
        refuse_other_flags(
            ("flops", "as_json"),
            "--flops is answered on its own and takes no other options",
            "use one or the other",
        )
        _print_optimum(options["flops"], as_json)
        return
    if options["task"] is not None:
        refuse_other_flags(
            ("task", "examples", "as_json"),
            "--task is answered on its own and only takes --examples",
            "use one or the other",
        )
        _print_recommendation(options["task"], options["examples"], as_json)
        return
    refuse_flags(("examples",), "only used with --task", "give --task, e.g. translate")
    if model is None:
        raise SettingError("there is no model to plan", "name one: regard plan transformer:base")
    _print_plan(model, options, as_json)


def _print_plan(model: str, options: dict[str, Any], as_json: bool) -> None:
    from regard.lab.plan import planner, report

    is_measured = options.pop("measure")
    for other in ("flops", "task", "examples"):
        del options[other]
    plan = planner.plan(model, recompute=options.pop("gradient_checkpointing"), **options)
    device = plan.device
    # An entry of the table of accelerators is known by its data sheet only.
    if is_measured and device.accelerator is not None:
        raise SettingError(f"there is no {device.name} here to measure", "use --device cpu or cuda")
    # Before a step that the system would end for its memory.
    if is_measured and plan.fits is False:
        raise SettingError(
            f"a step needs {amount(plan.needed)}, which {device.name} does not have",
            "reduce --batch, or leave --measure out",
        )
    measured = None
    if is_measured:
        from regard.lab.plan.measurement import MeasuredStep, measure

        measured = measure(MeasuredStep(plan.subject, device.torch_device))
    if as_json:
        content = report.data(plan)
        if measured is not None:
            content["measured"] = vars(measured)
        click.echo(json_text(content))
        return
    for line in report.lines(plan):
        click.echo(line)
    if measured is not None:
        click.echo("")
        for line in report.comparison_lines(plan, measured):
            click.echo(line)


def _print_optimum(flops: float, as_json: bool) -> None:
    from regard.lab.plan import report
    from regard.lab.plan.compute_optimal import compute_optimal

    optima = compute_optimal(flops)
    if as_json:
        click.echo(json_text([vars(optimum) for optimum in optima]))
        return
    for line in report.optimum_lines(flops, optima):
        click.echo(line)


def _print_recommendation(task: str, examples: int | None, as_json: bool) -> None:
    from regard.lab.plan.recommendation import recommend

    advice = recommend(task, examples)
    if as_json:
        click.echo(json_text(vars(advice)))
        return
    for line in advice.lines():
        click.echo(line)
