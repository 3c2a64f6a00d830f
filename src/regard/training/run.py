"""Training runs: `regard.train` and `regard.finetune`, from a recipe to a finished run folder."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import disk, spec
from regard.allocator import keep_large_blocks
from regard.builder import build
from regard.checkpoint import Checkpoints, Snapshots
from regard.core.embedding import Embedding
from regard.core.stack import Stack
from regard.data.word_vectors import read_vectors
from regard.decode.length_penalty import GNMTPenalty
from regard.errors import SettingError, TrainingInterrupted
from regard.families import folder as folders
from regard.families import recurrent, transformer
from regard.metrics.scores import AnyScore
from regard.models import Translator, choose_device
from regard.training import finetune as finetuning
from regard.training import model_card, own_model
from regard.training.data.parallel_text import ParallelCorpora, parallel_corpora, test_sets
from regard.training.engine import layerwise_lr_decay
from regard.training.engine.initialization import initialize
from regard.training.engine.loop import Loop
from regard.training.engine.lr_schedule import (
    ConstantRate,
    CosineDecay,
    InverseSquareRoot,
    LinearDecay,
    Schedule,
)
from regard.training.engine.metrics_log import MetricsLog
from regard.training.engine.optimizer import AdamConfig, Optimizer
from regard.training.engine.progress_bar import ProgressBar
from regard.training.job import Job, pad_to_multiple_of
from regard.training.language import language_job
from regard.training.objectives.distillation import translation_teacher
from regard.training.objectives.sequence_to_sequence import SequenceToSequence, final_scores
from regard.training.recipe import schema as recipes
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder, begin, resume

OnStep = Callable[[Loop], None]

# Keys of [model] that change a preset, where they are set.
_TRANSFORMER_CHANGES = (
    "d_model",
    "d_ff",
    "heads",
    "layers",
    "decoder_layers",
    "dropout",
    "attention_dropout",
    "feedforward_dropout",
    "activation",
    "attention",
    "decoder_attention",
)
_BASELINE_CHANGES = ("d_model", "layers", "dropout")


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, its score on each test set, and what it took."""

    folder: Path
    scores: dict[str, AnyScore]
    seconds: float  # of training
    compiling: float  # of these, spent on compiling
    parameters: int


# --- entry points ---------------------------------------------------------------------------------


def train(
    recipe: str | Path | Mapping[str, Any] | None = None,
    *,
    model: spec.Model | str | None = None,
    out: str | Path | None = None,
    on_step: OnStep | None = None,
    **changes: Any,
) -> Result:
    """Runs a packaged recipe, a TOML file, or plain settings: `regard.train("builtin", steps=100)`.

    `model` is a spec, for translation and language modelling, which then replaces the sizes of the
    recipe; or the name of a kind of model, as in a recipe.

    `on_step` is called after every update with the training loop, whose `progress` it may read and
    whose `request_stop()` ends the run. A run that is stopped so, or by Ctrl-C or SIGTERM, saves
    its state and raises `TrainingInterrupted`.
    """
    if isinstance(recipe, Mapping):
        changes = {**recipe, **changes}
        recipe = None
    if isinstance(model, str):
        changes["model"] = model
        model = None
    parsed, name = recipes.choose(recipe, changes)
    if model is not None:
        parsed = own_model.with_model(parsed, model, changes)
    run_folder = begin(parsed, Path(out) if out else None, name)
    if model is not None:
        own_model.write(run_folder, model)
    return run(run_folder, parsed, name, on_step=on_step, kinds=spec.own_kinds(model))


def finetune(
    model: str | Path,
    task: str,
    data: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    on_step: OnStep | None = None,
    **changes: Any,
) -> Result:
    """Fine-tunes a model: `regard.finetune("bert/", "classify", "train.tsv", lora=8)`.

    The changes are the settings of `regard finetune`, for instance `valid="dev.tsv"`; several files
    of pairs come with as many `prefixes`. `on_step` as in `regard.train`.
    """
    files = [data] if isinstance(data, str | Path) else data
    values = {
        **changes,
        "task": task,
        # A run is resumed from anywhere, so its recipe holds absolute paths.
        "base": str(Path(model).absolute()),
        "files": [str(Path(file).absolute()) for file in files],
    }
    for key in ("valid", "test"):
        if changes.get(key) is not None:
            values[key] = str(Path(changes[key]).absolute())
    run_folder, recipe, name = finetuning.start(values, Path(out) if out else None)
    return run(run_folder, recipe, name, quiet=quiet, on_step=on_step)


def go_on(
    folder: str | Path,
    *,
    quiet: bool = False,
    on_step: OnStep | None = None,
    kinds: Sequence[type] = (),
) -> Result:
    """Resumes a run from its newest intact checkpoint; `kinds` are the dataclasses of parts from
    outside the package that its model has."""
    run_folder, recipe, name = resume(Path(folder))
    return run(run_folder, recipe, name, quiet=quiet, on_step=on_step, kinds=kinds)


def run(
    run_folder: RunFolder,
    recipe: Recipe,
    name: str,
    *,
    quiet: bool = False,
    on_step: OnStep | None = None,
    kinds: Sequence[type] = (),
) -> Result:
    """Prepares the data, trains, scores, and writes the model card."""
    progress_bar = ProgressBar(recipe.train.steps, quiet)
    keep_large_blocks()  # of memory, for the batches to come
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    # TF32 is a switch of PyTorch, not a dtype: products of float32 matrices with 10-bit mantissas.
    torch.backends.cuda.matmul.allow_tf32 = recipe.train.precision == "tf32"
    job = make_job(run_folder, recipe, progress_bar, kinds)
    # ELECTRA trains two models at once: the objective holds all that has gradients.
    model = job.objective.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    progress_bar.say(
        f"model: {parameters:,} parameters, {recipe.train.precision} "
        f"on {choose_device(recipe.train.device)}; run folder: {run_folder.folder}"
    )
    tensorboard = run_folder.folder / "tensorboard" if recipe.train.tensorboard else None
    metrics = MetricsLog(run_folder.metrics, tensorboard)
    loop = Loop(
        recipe,
        job.objective,
        make_optimizer(recipe, model, job.d_model),
        (Checkpoints(run_folder.checkpoints), Snapshots(run_folder.snapshots)),
        metrics,
        progress_bar,
        after_save=job.export,
        on_step=on_step,
    )
    saved = loop.checkpoints.newest(progress_bar.say)
    if saved is not None:
        loop.restore(saved)
        progress_bar.say(f"resuming at step {saved.step}")
    else:
        metrics.truncate(0)  # of a run that ended before its first checkpoint
    try:
        loop.run()
    finally:
        metrics.close()
    if loop.interrupted:
        raise _interruption(loop, run_folder, progress_bar)
    # The scores are of the weights in the folder: averaged, or the best, not the last.
    with loop.exported():
        scores = job.scores()
    progress = loop.progress
    facts = model_card.Facts(parameters, progress.step, progress.seconds, scores)
    model_card.write(run_folder, recipe, name, facts)
    return Result(run_folder.folder, scores, progress.seconds, progress.compiling, parameters)


def _interruption(
    loop: Loop, run_folder: RunFolder, progress_bar: ProgressBar
) -> TrainingInterrupted:
    step = loop.progress.step
    repair = f"go on with: regard train --resume {run_folder.folder}"
    progress_bar.say(f"saved at step {step}; {repair}")
    stopped_by = signal.Signals(loop.stop_signal).name
    return TrainingInterrupted(
        f"{stopped_by} stopped the run; it is saved at step {step}", repair, loop.stop_signal
    )


def make_job(
    run_folder: RunFolder,
    recipe: Recipe,
    progress_bar: ProgressBar,
    kinds: Sequence[type] = (),
) -> Job:
    """The job of a recipe, with its data prepared and its model initialized."""
    if recipe.tune:
        return finetuning.make_job(run_folder, recipe, progress_bar)
    model = own_model.read(run_folder, kinds)
    if recipe.train.objective == "translate":
        assert not isinstance(model, spec.Decoder), "refused when the run began"
        return _translation_job(run_folder, recipe, progress_bar, model)
    assert not isinstance(model, spec.EncoderDecoder), "refused when the run began"
    return language_job(run_folder, recipe, progress_bar, model)


# --- translation ----------------------------------------------------------------------------------


def _translation_job(
    run_folder: RunFolder,
    recipe: Recipe,
    progress_bar: ProgressBar,
    model: spec.EncoderDecoder | None,
) -> Job:
    data = parallel_corpora(run_folder, recipe, progress_bar.say)
    translator = make_translator(recipe, data, progress_bar.say, model)
    _write_config_files(run_folder, recipe, translator)
    objective = SequenceToSequence(
        translator,
        data,
        recipe.train,
        pad_to_multiple_of(recipe, translator.device),
        translation_teacher(recipe, translator),
    )
    return Job(
        objective,
        translator.spec.d_model,
        lambda: folders.write_weights(run_folder.weights, translator.model, translator.spec),
        lambda: final_scores(test_sets(recipe), translator, recipe, progress_bar),
    )


def describe(
    recipe: Recipe, source_vocabulary: int, target_vocabulary: int
) -> spec.EncoderDecoder | spec.SequenceToSequence:
    """The spec of a recipe's translation model."""
    settings = recipe.model
    # One vocabulary for both sides allows one embedding matrix for all three (Section 3.4).
    joint = recipe.tokens.joint and recipe.tokens.target_tokenizer is None
    share = settings.share or ("all" if joint else "target")
    keys = _BASELINE_CHANGES if recipe.is_baseline else _TRANSFORMER_CHANGES
    values = {key: getattr(settings, key) for key in keys}
    changes = {key: value for key, value in values.items() if value is not None}
    changes |= {"share": share, "max_length": recipe.data.max_length}
    vocabularies = (source_vocabulary, target_vocabulary)
    if recipe.is_baseline:
        return recurrent.preset(str(settings.model), recipe.preset, *vocabularies, **changes)
    changes |= _positions(recipe)
    changes["residual"] = spec.PreNorm() if settings.residual == "pre" else spec.PostNorm()
    return transformer.preset(recipe.preset, *vocabularies, **changes)


def _positions(recipe: Recipe) -> dict[str, Any]:
    """Position encodings: at the input (`position`), or inside attention (`relative`)."""
    # Added to the token embeddings.
    at_input: dict[str, spec.InputPosition] = {
        "sinusoidal": spec.Sinusoidal(),
        "learned": spec.LearnedPosition(recipe.data.max_length),
        "concatenated": spec.ConcatenatedPosition(64),  # concatenated, then mapped to d_model
    }
    # In the attention scores, or on queries and keys.
    inside: dict[str, spec.StackPosition] = {
        "relative": spec.RelativeKeys(16),  # k = 16, as in Shaw et al., Section 4.1
        "buckets": spec.T5Bias(),
        "alibi": spec.Alibi(),
        "rope": spec.Rope(),
    }
    kind = recipe.model.position or "sinusoidal"
    return {"position": at_input.get(kind), "relative": inside.get(kind)}


def make_translator(
    recipe: Recipe,
    data: ParallelCorpora,
    say: Callable[[str], None],
    own: spec.EncoderDecoder | None = None,
) -> Translator:
    """A new translator with its initial weights, on its device: of the recipe, or of `own` spec."""
    source = data.source_tokenizer
    target = data.target_tokenizer
    description: spec.EncoderDecoder | spec.SequenceToSequence
    if own is None:
        description = describe(recipe, len(source), len(target))
    else:
        own_model.check_vocabulary("source", own.source, len(source))
        own_model.check_vocabulary("target", own.target, len(target))
        description = own
    # Weights are drawn on the CPU: the same on every device.
    torch.manual_seed(recipe.train.seed)
    model = build(description)
    initialize(model, recipe.initialization)
    assert isinstance(model.source, Embedding), "recipes are of text"
    source_table = model.source.table
    target_table = model.target.table
    if recipe.model.vectors:
        path = Path(recipe.model.vectors)
        read_vectors(path, source, source_table.weight.data, say)
        if target_table is not source_table:  # otherwise they are one tensor
            read_vectors(path, target, target_table.weight.data, say)
    if recipe.model.freeze_embeddings:
        source_table.weight.requires_grad_(False)
        target_table.weight.requires_grad_(False)
    for side in (model.encoder, model.decoder):
        if isinstance(side, Stack):  # recurrent and convolutional sides store few activations
            side.activation_checkpointing = recipe.train.recompute
    model.to(choose_device(recipe.train.device))
    return Translator(model, description, source, target, target.required_token_id("bos"))


def _write_config_files(run_folder: RunFolder, recipe: Recipe, translator: Translator) -> None:
    """Writes what makes the run folder a Hugging Face repository, besides weights and card."""
    source = translator.source_tokenizer
    target = translator.target_tokenizer
    # The ids are those of the decoder, which starts and ends by them.
    ids = folders.SpecialTokenIds(
        target.required_token_id("pad"),
        translator.start,
        target.required_token_id("eos"),
        target.special_token_id("unk"),
    )
    penalty = recipe.length_penalty
    kind = "gnmt" if isinstance(penalty, GNMTPenalty) else "power"
    generation_config = folders.generation_config(
        ids, beam=recipe.decode.beam, length_penalty=penalty.alpha, search={kind: penalty.alpha}
    )
    tokens = source.special_tokens
    tokenizer_config = folders.tokenizer_config(
        tokens["pad"], tokens["bos"], tokens["eos"], tokens.get("unk")
    )
    files = {
        "config.json": folders.describe(translator.spec, ids),
        "generation_config.json": generation_config,
        "tokenizer_config.json": tokenizer_config,
    }
    for name, content in files.items():
        disk.write_json(run_folder.folder / name, content)


# --- optimization ---------------------------------------------------------------------------------


def make_optimizer(recipe: Recipe, model: nn.Module, d_model: int) -> Optimizer:
    train = recipe.train
    lr_multipliers = None  # one learning rate for all parameters
    if recipe.tune:
        lr_multipliers = layerwise_lr_decay.lr_multipliers(model, recipe.tune.layer_decay)
    return Optimizer(
        model.named_parameters(),
        lr_schedule(recipe, d_model),
        AdamConfig(train.optimizer, train.betas, train.adam_eps, train.weight_decay),
        max_grad_norm=train.clip,
        loss_scaling=train.precision == "fp16",  # bf16 has the exponents of float32
        lr_multipliers=lr_multipliers,
    )


def lr_schedule(recipe: Recipe, d_model: int) -> Schedule:
    """The learning-rate schedule of a recipe."""
    train = recipe.train
    peak = train.learning_rate
    if train.schedule == "paper":  # Equation 3
        if peak:
            return InverseSquareRoot.with_peak(peak, train.warmup)
        return InverseSquareRoot(d_model, train.warmup)
    if peak is None:
        raise SettingError(f"schedule = {train.schedule!r} needs a peak", "set learning_rate")
    if train.schedule == "linear":
        return LinearDecay(peak, train.warmup, train.steps)
    if train.schedule == "cosine":
        return CosineDecay(peak, train.warmup, train.steps, train.floor)
    return ConstantRate(peak, train.warmup)
