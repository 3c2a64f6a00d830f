"""regard plan"""

from __future__ import annotations

import json
from typing import Any

import click

from regard.cli.completion import Suggested, preset_names, recipe_names
from regard.cli.number_types import COUNT, FLOPS, Number, WholeNumber
from regard.cli.unread_flags import refuse_flags, refuse_other_flags
from regard.errors import SettingError

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


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("model", type=Suggested([*recipe_names(), *preset_names()], "file"), required=False)
@click.option("--device", default="auto", show_default=True,
              help="cpu or cuda, timed here, or of the table: A100, H100, H200, B200, L4, T4, "
              "V100, RTX4090, TPUv4, TPUv5e, TPUv5p")  # fmt: skip
@click.option("--devices", type=COUNT, default=1, help="how many of them")
@click.option("--batch", type=COUNT, help="rows of a micro-batch")
@click.option("--length", type=COUNT, help="positions of a row")
@click.option("--tokens", type=Number(1), help="positions of the whole training")
@click.option("--precision", type=click.Choice(["float32", "tf32", "bf16", "fp16"]))
@click.option("--accumulate", type=COUNT, help="micro-batches of an update")
@click.option("--recompute", is_flag=True, default=None, help="activation checkpointing")
@click.option("--vocabulary", type=WholeNumber(1, 5_000_000), help="tokens, or classes of images")
@click.option("--price", type=Number(), help="dollars an hour and device")
@click.option("--utilisation", type=Number(0.0001, 1),
              help="MFU to assume, between 0 and 1, instead of a roofline")  # fmt: skip
@click.option("--measure", is_flag=True, help="run the step here too, beside its prediction")
@click.option("--flops", type=FLOPS, help="the compute-optimal size of this budget (Chinchilla)")
@click.option("--task", help="recommend a model: translate, classify, causal, images, …")
@click.option(
    "--examples", type=WholeNumber(1, 10**18), help="with --task: how many there are to learn from"
)
@click.option("--json", "as_json", is_flag=True, help="the same as JSON; of --flops, an array")
def command(model: str | None, as_json: bool, **options: Any) -> None:
    """Predict what a training costs: parameters, FLOPs, memory, time, money; and what would fit.

    MODEL is a recipe, a preset NAME[:SIZE], a config.json, a spec file or a model folder, of texts,
    images or sound; series and graphs are not planned. Nothing is trained and no weights are read:
    one training step is traced with tensors that have shapes but no memory.
    """
    # Two questions that need no MODEL, each answered by itself.
    if options["flops"] is not None:
        refuse_other_flags(
            ("flops", "as_json"),
            "the compute-optimal size of --flops depends on nothing else",
            "ask for one of both",
        )
        _print_optimum(options["flops"], as_json)
        return
    if options["task"] is not None:
        refuse_other_flags(
            ("task", "examples", "as_json"),
            "what is recommended for --task depends on nothing else but --examples",
            "ask for one of both",
        )
        _print_recommendation(options["task"], options["examples"], as_json)
        return
    refuse_flags(("examples",), "a model is recommended for a task", "give --task, e.g. translate")
    if model is None:
        raise SettingError("there is no model to plan", "name one: regard plan transformer:base")
    _print_plan(model, options, as_json)


def _print_plan(model: str, options: dict[str, Any], as_json: bool) -> None:
    from regard.plan import planner, report
    from regard.plan.subject import Request, resolve

    request = Request(
        options["batch"],
        options["length"],
        options["precision"],
        options["accumulate"],
        options["recompute"],
        options["vocabulary"],
        options["tokens"],
    )
    subject = resolve(model, request)
    device = planner.find_device(options["device"])
    # An entry of the table of accelerators is known by its data sheet only.
    if options["measure"] and device.accelerator is not None:
        raise SettingError(f"there is no {device.name} here to measure", "say --device cpu or cuda")
    plan = planner.make_plan(
        subject,
        device,
        devices=options["devices"],
        price=options["price"],
        utilisation=options["utilisation"],
    )
    # After the plan, which refuses what cannot be planned.
    measured = _measure(subject, device) if options["measure"] else None
    if as_json:
        content = report.data(plan)
        if measured is not None:
            content["measured"] = vars(measured)
        click.echo(json.dumps(content, ensure_ascii=False))
        return
    for line in report.lines(plan):
        click.echo(line)
    if measured is not None:
        click.echo("")
        for line in report.comparison_lines(plan, measured):
            click.echo(line)


def _measure(subject: Any, device: Any) -> Any:
    from regard.plan.measurement import MeasuredStep, measure

    step = MeasuredStep(
        subject.description,
        subject.workload,
        subject.settings,
        device.torch_device,
        subject.generator,
    )
    return measure(step)


def _print_optimum(flops: float, as_json: bool) -> None:
    from regard.plan import report
    from regard.plan.compute_optimal import compute_optimal

    optima = compute_optimal(flops)
    if as_json:
        click.echo(json.dumps([vars(optimum) for optimum in optima]))
        return
    for line in report.optimum_lines(flops, optima):
        click.echo(line)


def _print_recommendation(task: str, examples: int | None, as_json: bool) -> None:
    from regard.plan.recommendation import recommend

    advice = recommend(task, examples)
    if as_json:
        click.echo(json.dumps(vars(advice), ensure_ascii=False))
        return
    for line in advice.lines():
        click.echo(line)
