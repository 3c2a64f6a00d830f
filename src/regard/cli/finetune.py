"""regard finetune"""

from __future__ import annotations

from typing import Any

import click

from regard.cli.recipe_options import (
    RecipeCommand,
    overwrite_option,
    recipe_changes,
    recipe_option,
    resume_option,
)
from regard.cli.shared_options import (
    FILE,
    MODEL_FOLDER,
    download_option,
    json_option,
    local_folder,
    option,
)
from regard.cli.train import exit_on_interruption, print_scores, resume_run
from regard.system.errors import SettingError
from regard.training.recipe.objectives import OBJECTIVES, TASKS
from regard.training.recipe.sections import TuneSettings

EXAMPLES = """\b
Examples:
  regard finetune bert/ --task classify --data train.tsv --valid dev.tsv --out runs/mood
  regard finetune bert/ --task classify --data train.tsv --lora 8      LoRA, merged at the end
  regard finetune bert/ --task tag --data train.conll --freeze 4 --layer-decay 0.9
  regard finetune bert/ --task answer --data squad.jsonl --epochs 2
  regard finetune t5/ --task translate --data de.tsv --prefix "translate English to German: " \\
                      --data sums.tsv --prefix "summarize: "
  regard finetune gpt2/ --task lm --data novel.txt --context 512
  regard finetune whisper/ --task transcribe --data table.tsv --languages en      or --task ctc
  regard finetune --resume runs/mood
"""
# Recipe keys that fine-tuning shares with training; steps and warm-up follow from --epochs and
# --warmup-ratio.
_SHARED_KEYS = (
    "max_length", "context", "held_out", "batch_tokens", "accumulate", "optimizer", "schedule",
    "learning_rate", "betas", "adam_eps", "weight_decay", "max_grad_norm", "label_smoothing",
    "image_size", "crop_padding", "flip", "mixup", "speed_perturbation", "time_shift", "noise_snr",
    "time_masks", "time_mask_width", "frequency_masks", "frequency_mask_width", "teacher",
    "distillation_weight", "temperature", "precision", "pad_to_multiple_of",
    "gradient_checkpointing", "final_weights", "validate_every",
    "spike_threshold", "rollback_steps", "metric", "patience", "save_every", "keep_last",
    "keep_best", "keep_every",
    "log_every", "samples", "seed", "device", "threads",
    "tensorboard", "beam", "length_penalty", "languages",
)  # fmt: skip
# Defaults of fine-tuning, where they differ from those of training.
_DEFAULTS = {
    "batch_tokens": "1024", "optimizer": "adamw", "schedule": "linear",
    # Devlin et al. 2019, Appendix A.3, tries 2e-5, 3e-5 and 5e-5.
    "learning_rate": "3e-5; 5e-4 with --lora", "betas": "0.9,0.999", "adam_eps": "1e-8",
    "weight_decay": "0.01", "max_grad_norm": "1", "label_smoothing": "0",
    "validate_every": "every epoch", "save_every": "every epoch",
    "metric": "accuracy, f1 or loss, by task",
}  # fmt: skip
# Help texts of keys that mean something else here.
_HELP = {
    "max_length": "maximum length in tokens; longer texts are truncated (classify, tag), split "
    "(answer) or dropped (translate, summarize)",
    "label_smoothing": "for translate, summarize, transcribe and classification only",
}
# Keys of the [tune] section that the command sets from its own options.
_SET_BY_COMMAND = ("task", "base", "files", "prefixes")


# ------------------------------------------------------------------ the command


@click.command(cls=RecipeCommand, epilog=EXAMPLES)
# optional, because --resume needs no model
@click.argument("model", type=MODEL_FOLDER, required=False)
@option(
    "--task",
    "the task: classify, tag, answer, translate, summarize, lm, images, …",
    click.Choice([*OBJECTIVES, *TASKS]),
    metavar="TASK",
)
@option("--data", "training data (may be .gz)", FILE, metavar="FILE", multiple=True)
@option(
    "--prefix prefixes",
    "prefix for the source texts of a --data file; give one per --data",
    multiple=True,
)
@option("--out", "run folder  [runs/TASK]", MODEL_FOLDER)
@overwrite_option
@resume_option
@json_option("print the result as one JSON object")
@download_option
def command(
    model: str | None,
    task: str | None,
    data: tuple[str, ...],
    out: str | None,
    overwrite: bool,
    resume: str | None,
    as_json: bool,
    download: bool = False,
    **flags: Any,
) -> None:
    """Fine-tune MODEL, a folder in Hugging Face format. The run folder has the same format.

    classify: text, tab, label (or text, tab, text, tab, label), or JSON Lines with text, text2,
    label. tag: one word and its tag per line, a blank line between sentences, or JSON Lines with
    tokens, tags. answer: JSON Lines with question, context, answer_start, text, as in SQuAD.
    translate, summarize: source, tab, target, or JSON Lines with source, target; repeat --data and
    --prefix to train on several tasks at once. lm: plain text. images: a folder with one subfolder
    of images per class. image_text: image file, tab, caption, or JSON Lines with image, text.
    """
    changes = recipe_changes(flags)
    # A run that is resumed has its recipe in its folder.
    if resume is not None:
        if model or out or overwrite or data or task:
            changes |= {"model": model}
        resume_run(resume, changes, as_json)
        return
    if model is None or task is None or not data:
        raise SettingError(
            "there is nothing to train", "give a model, --task and --data (see --help)"
        )
    # Imported late: torch is not needed to report wrong flags.
    from regard.training.entry_points import finetune as run

    with exit_on_interruption():
        folder = local_folder(model, download)
        result = run(folder, task, data, out=out, overwrite=overwrite, **changes)
    print_scores(result, as_json)


command.params += [
    recipe_option(key, _HELP.get(key), _DEFAULTS.get(key))
    for key in (*TuneSettings.model_fields, *_SHARED_KEYS)
    if key not in _SET_BY_COMMAND
]
