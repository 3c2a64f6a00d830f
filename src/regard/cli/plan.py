"""regard plan"""

from __future__ import annotations

from typing import Any

import click

from regard.cli.shared_options import (
    COUNT,
    FLOPS,
    Flags,
    Number,
    Suggested,
    WholeNumber,
    flag,
    json_option,
    option,
    preset_names,
    print_result,
    recipe_names,
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
  regard plan llama:7b --device H100 --precision bf16 --inference
  regard plan --flops 1e21
  regard plan --task translate --examples 30000
"""


@click.command(epilog=EXAMPLES)
@click.argument(
    "model", type=Suggested(lambda: [*recipe_names(), *preset_names()], "file"), required=False
)
@option(
    "--device",
    "cpu or cuda (timed on this machine), or a known device: A100, H100, H200, B200, L4, T4, V100, "
    "RTX4090, TPUv4, TPUv5e, TPUv5p",
    default="auto",
)
@option("--devices", "number of devices", COUNT, default=1)
@option("--batch", "sequences per micro-batch", COUNT)
@option("--length", "sequence length in positions", COUNT)
@option("--tokens", "total training positions", Number(1))
@option("--precision", "of the training", click.Choice(["float32", "tf32", "bf16", "fp16"]))
@option("--accumulate", "micro-batches per update", COUNT)
@flag("--gradient-checkpointing", "activation checkpointing", default=None)
@option("--vocabulary", "vocabulary size, or number of image classes", WholeNumber(1, 5_000_000))
@option("--price", "price in dollars per device-hour", Number())
@option("--utilization", "assume this MFU (0 to 1) instead of a roofline model", Number(0.0001, 1))
@flag("--inference", "the latency of inference at batch 1 instead: first token, further tokens")
@flag("--measure", "also run the step here and compare it with the prediction")
@option("--flops", "the compute-optimal model size for this budget (Chinchilla)", FLOPS)
@option("--task", "recommend a model: translate, classify, causal, images, …")
@option("--examples", "with --task: number of training examples", WholeNumber(1, 10**18))
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
            ("flops", "as_json"), "--flops is answered on its own", "use one or the other"
        )
        from regard.lab.plan import report
        from regard.lab.plan.compute_optimal import compute_optimal

        optima = compute_optimal(options["flops"])
        lines = report.optimum_lines(options["flops"], optima)
        print_result(as_json, list(map(vars, optima)), lines)
    elif options["task"] is not None:
        refuse_other_flags(
            ("task", "examples", "as_json"), "--task only takes --examples", "use one or the other"
        )
        from regard.lab.plan.recommendation import recommend

        advice = recommend(options["task"], options["examples"])
        print_result(as_json, vars(advice), advice.lines())
    else:
        refuse_flags(("examples",), "only used with --task", "give --task, e.g. translate")
        if model is None:
            raise SettingError(
                "there is no model to plan", "name one: regard plan transformer:base"
            )
        _print_plan(model, options, as_json)


def _print_plan(model: str, options: Flags, as_json: bool) -> None:
    from regard.lab.plan import planner, report

    for other in ("flops", "task", "examples"):
        del options[other]
    is_measured = options.pop("measure")
    if options.pop("inference"):
        _print_latency(model, options, is_measured, as_json)
        return
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
    content = report.data(plan)
    lines = list(report.lines(plan))
    if is_measured:
        from regard.lab.plan.measurement import MeasuredStep, measure

        measured = measure(MeasuredStep(plan.subject, device.torch_device))
        content["measured"] = vars(measured)
        lines += ["", *report.comparison_lines(plan, measured)]
    print_result(as_json, content, lines)


def _print_latency(model: str, options: Flags, is_measured: bool, as_json: bool) -> None:
    from regard.lab.plan import latency, planner, report
    from regard.lab.plan.subject import Request, resolve

    read = ("length", "precision", "vocabulary")
    refuse_other_flags(
        ("model", "device", "inference", "measure", "as_json", *read),
        "not read by --inference, which is of one input",
        "leave it out",
    )
    device = planner.find_device(options["device"])
    subject = resolve(model, Request(**{name: options[name] for name in read}))
    if is_measured and device.accelerator is not None:
        raise SettingError(f"there is no {device.name} here to measure", "use --device cpu or cuda")
    predicted = latency.plan_latency(subject, device, measure=is_measured)
    print_result(as_json, predicted.data(), report.latency_lines(predicted))
