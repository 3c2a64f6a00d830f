"""regard finetune"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import click

from regard.cli.train import Flags, exit_on_interruption, flag, tell
from regard.errors import SettingError
from regard.training.recipe import schema as recipes

EXAMPLES = """\b
Examples:
  regard finetune bert/ --task classify --data train.tsv --valid dev.tsv --test test.tsv --out runs/mood
  regard finetune bert/ --task classify --data train.tsv --lora 8             small changes only, merged at the end
  regard finetune bert/ --task tag --data train.conll --freeze 4 --layer-decay 0.9
  regard finetune bert/ --task answer --data squad.jsonl --epochs 2
  regard finetune t5/ --task translate --data de.tsv --prefix "translate English to German: " \\
                      --data sums.tsv --prefix "summarize: "
  regard finetune gpt2/ --task lm --data novel.txt --context 512
  regard finetune --resume runs/mood
"""
# Settings of a training that fine-tuning has too; steps and warm-up follow from --epochs and --warm-up.
_SHARED = (
    "max_length", "context", "held_out", "batch_tokens", "accumulate", "optimizer", "schedule", "learning_rate", "betas",
    "adam_eps", "weight_decay", "clip", "label_smoothing", "teacher", "teaching", "temperature", "precision", "multiple",
    "recompute", "weights", "validate_every", "metric", "patience", "save_every", "log_every", "samples", "seed", "device",
    "threads", "tensorboard", "beam", "length_penalty",
)  # fmt: skip
# Where fine-tuning starts from another value than training does.
_OTHERS = {
    "batch_tokens": "1024", "optimizer": "adamw", "schedule": "linear", "learning_rate": "3e-5; 5e-4 with --lora",
    "betas": "0.9,0.999", "adam_eps": "1e-8", "weight_decay": "0.01", "clip": "1", "label_smoothing": "0",
    "validate_every": "an epoch", "save_every": "an epoch", "metric": "accuracy, f1 or loss, by task",
}  # fmt: skip
# What means something else here.
_MEANINGS = {
    "max_length": "tokens: longer texts are cut (classify, tag), read in parts (answer), left out (translate, summarize)",
    "label_smoothing": "translate and summarize only",
}


def _option(key: str) -> click.Option:
    """A flag of `Tune`."""
    field = recipes.Tune.model_fields[key]
    kinds = [
        kind
        for kind in (*typing.get_args(field.annotation), field.annotation)
        if kind in (int, float)
    ]
    default = "" if field.default is None else f"  [{field.default}]"
    text = f"{field.description or ''}{default}".strip()
    return click.Option(
        [f"--{key.replace('_', '-')}", key],
        type=kinds[0] if kinds else str,
        default=None,
        help=text,
    )


def _shared(key: str) -> click.Option:
    option, field = flag(key), recipes.SECTIONS[recipes.KEYS[key]].model_fields[key]
    if key in _OTHERS or key in _MEANINGS:
        meaning = _MEANINGS.get(key, field.description or "")
        option.help = f"{meaning}  [{_OTHERS.get(key, field.default)}]".strip()
    return option


def finetune(
    model: str | None,
    task: str | None,
    data: tuple[str, ...],
    prefix: tuple[str, ...],
    out: str | None,
    resume: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train MODEL, a folder in Hugging Face's layout, further for a task; the run folder is again such a folder.

    classify: text, tab, label (or text, tab, text, tab, label), or JSON Lines with text, text2, label. tag: word and tag a
    line, blank lines between sentences, or JSON Lines with tokens, tags. answer: JSON Lines with question, context,
    answer_start, text, as in SQuAD. translate, summarize: source, tab, target, or JSON Lines with source, target; several
    --data with a --prefix each are learnt together. lm: plain text.
    """
    changes = {key: value for key, value in flags.items() if value is not None}
    if "betas" in changes:
        changes["betas"] = tuple(float(part) for part in changes["betas"].split(","))
    if resume is not None:
        if model or changes or out or data:
            raise SettingError(
                "--resume goes on with the settings the run began with", "leave the other flags out"
            )
        from regard.training.run import go_on

        with exit_on_interruption():
            tell(go_on(Path(resume)), as_json)
        return
    if model is None or task is None or not data:
        raise SettingError(
            "there is nothing to train", "give a model, --task and --data (see --help)"
        )
    from regard.training.run import finetune as tune

    with exit_on_interruption():
        tell(tune(model, task, data, out=out, prefixes=prefix, **changes), as_json)


command = Flags(
    "finetune",
    callback=finetune,
    help=finetune.__doc__,
    epilog=EXAMPLES,
    context_settings={"max_content_width": 110},
    params=[
        click.Argument(["model"], required=False),
        click.Option(
            ["--task"], type=click.Choice(typing.get_args(recipes.TunedTask)), help="what is learnt"
        ),
        click.Option(["--data"], metavar="FILE", multiple=True, help="training data (.gz too)"),
        click.Option(
            ["--prefix"],
            multiple=True,
            help="put before the source texts of a --data, one for each",
        ),
        click.Option(["--out"], help="the run folder  [runs/TASK]"),
        click.Option(["--resume"], metavar="DIR", help="go on with the run in DIR"),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="print the result as one JSON object"
        ),
        *(
            _option(key)
            for key in recipes.Tune.model_fields
            if key not in ("task", "base", "files", "prefixes")
        ),
        *(_shared(key) for key in _SHARED),
    ],
)
