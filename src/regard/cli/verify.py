"""regard verify"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

EXAMPLES = """\b
Examples:
  regard verify runs/builtin
  regard verify path/to/bert-base --against transformers
  regard verify path/to/model --seed 7 --json
"""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("model")
@click.option(
    "--against",
    type=click.Choice(["transformers"]),
    help="compare with this library too, if it is installed",
)
@click.option("--seed", type=int, default=0, show_default=True, help="of the random inputs")
@click.option(
    "--precision",
    type=click.Choice(["float64", "float32"]),
    default="float64",
    show_default=True,
    help="of the invariants; float32 takes half the memory and sees less",
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:N or auto")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def command(
    model: str, against: str | None, seed: int, precision: str, device: str, as_json: bool
) -> None:
    """Check what must hold of every model, on random inputs: cached = uncached, batched = single, padded = unpadded,
    fused = explicit attention, saved = loaded; and that another library computes the same.

    MODEL is a run folder or a folder in Hugging Face's layout; no tokenizer is needed. Each line says the largest difference
    found and what is allowed. The exit code is 1 if anything fails.
    """
    import torch

    from regard import memory
    from regard.families.folder import open_model, peek
    from regard.models import choose_device
    from regard.parameter_count import parameter_count
    from regard.verify.invariants import findings
    from regard.verify.parity import parity

    if precision == "float64":
        memory.require(2 * parameter_count(peek(model).spec), f"{model} in float64")
    opened_model, opened = open_model(model)
    opened_model.to(choose_device(device))
    found = []

    def say(finding: Any) -> None:
        found.append(finding)
        if not as_json:
            click.echo(line(finding))

    if against:
        say(parity(model, opened_model, opened, seed))
    opened_model.to(getattr(torch, precision))
    for finding in findings(opened_model, opened, seed):
        say(finding)
    failed = [finding for finding in found if finding.verdict == "fails"]
    if as_json:
        told = [finding.data() for finding in found]
        click.echo(
            json.dumps(
                {
                    "model": model,
                    "family": opened.kind,
                    "seed": seed,
                    "holds": not failed,
                    "checks": told,
                }
            )
        )
    sys.exit(1 if failed else 0)


def line(finding: Any) -> str:
    if finding.difference is None:
        return f"{finding.name:32} skipped  {finding.note}"
    return (
        f"{finding.name:32} {finding.verdict:8} largest difference {finding.difference:.2e}, "
        f"allowed {finding.tolerance:.2e}  ({finding.note})"
    )
