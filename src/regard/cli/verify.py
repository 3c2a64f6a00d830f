"""regard verify"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from regard.cli.shared_options import (
    MODEL_FOLDER,
    SEED,
    download_option,
    json_option,
    json_text,
    local_folder,
    option,
)

if TYPE_CHECKING:
    from regard.lab.verify.invariants import Finding

EXAMPLES = """\b
Examples:
  regard verify runs/builtin
  regard verify path/to/bert-base --against transformers
  regard verify path/to/model --seed 7 --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", type=MODEL_FOLDER)
@option(
    "--against",
    "also compare with this library (must be installed)",
    click.Choice(["transformers"]),
)
@option("--seed", "seed of the random inputs", SEED, default=0)
@option(
    "--precision",
    "precision of the checks; float32 uses half the memory and is less sensitive",
    click.Choice(["float64", "float32"]),
    default="float64",
)
@option("--device", "cpu, cuda, cuda:N or auto", default="cpu")
@download_option
@json_option()
def command(
    model: str,
    against: str | None,
    seed: int,
    precision: str,
    device: str,
    download: bool,
    as_json: bool,
) -> None:
    """Check invariants that must hold for every model, on random inputs.

    Cached = uncached, batched = single, padded = unpadded, fused = explicit attention, saved =
    loaded; with --against, also parity with another library. MODEL is a run folder or a folder in
    Hugging Face format; no tokenizer is needed. Each line gives the largest difference and the
    tolerance. The exit code is 1 if any check fails.
    """
    import torch

    from regard.builder.parameter_count import parameter_count
    from regard.core.finite_outputs import require_finite_weights
    from regard.families.folder import open_model, peek
    from regard.lab.verify.invariants import check_invariants
    from regard.lab.verify.parity import parity
    from regard.models import choose_device
    from regard.system import memory

    model = local_folder(model, download)
    if precision == "float64":
        # A float64 takes the room of two float32 numbers, which `require` counts.
        memory.require(2 * parameter_count(peek(model).spec), f"{model} in float64")
    core_model, opened = open_model(model)
    require_finite_weights(core_model, str(model))
    core_model.to(choose_device(device))
    findings: list[Finding] = []  # for the JSON object, and the exit code

    def report(finding: Finding) -> None:
        """Prints each check as soon as it is done."""
        findings.append(finding)
        if not as_json:
            click.echo(format_finding(finding))

    # Parity runs in float32, which other libraries compute in: before the cast.
    if against:
        report(parity(model, core_model, opened, seed))
    # In float64, a difference is an error and not rounding.
    core_model.to(getattr(torch, precision))
    for finding in check_invariants(core_model, opened, seed):
        report(finding)
    failed = any(finding.verdict == "fails" for finding in findings)
    if as_json:
        result = {
            "model": model,
            "family": opened.model_type,
            "seed": seed,
            "holds": not failed,
            "checks": [finding.data() for finding in findings],
        }
        click.echo(json_text(result))
    # Skipped checks do not fail.
    sys.exit(failed)


def format_finding(finding: Finding) -> str:
    """One check as a line of text."""
    if finding.difference is None:
        return f"{finding.name:32} skipped  {finding.note}"
    return (
        f"{finding.name:32} {finding.verdict:8} largest difference {finding.difference:.2e}, "
        f"allowed {finding.tolerance:.2e}  ({finding.note})"
    )
