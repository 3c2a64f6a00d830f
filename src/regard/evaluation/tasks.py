"""The evaluation tasks by name; those of objectives have the names of the objectives."""

from __future__ import annotations

from collections.abc import Callable

from regard import spec
from regard.errors import ModelError, SettingError, did_you_mean
from regard.evaluation import examples
from regard.evaluation.classification import (
    answer_questions,
    has_entities,
    predict_numbers,
    rank_labels,
    read_labelled_texts,
    read_questions,
    read_rated_texts,
    read_tagged_words,
    tag_words,
)
from regard.evaluation.corrupted_text import (
    denoising_likelihood,
    masked_likelihood,
    predict_masked,
    span_likelihood,
)
from regard.evaluation.forecasting import (
    forecast_points,
    forecast_quantiles,
    forecasts,
    read_series_file,
)
from regard.evaluation.graphs import rank_graph_classes, read_graph_data
from regard.evaluation.language_modelling import read_text, text_likelihood
from regard.evaluation.media import (
    rank_captions,
    rank_image_classes,
    rank_sound_classes,
    read_captions,
    read_image_folders,
    read_images,
    read_labelled_recordings,
    read_transcripts,
    reconstruct_patches,
    transcribe,
)
from regard.evaluation.replaced_tokens import detect_replaced, replaced_likelihood
from regard.evaluation.retrieval import answer_stories, rank_pairs, read_text_pairs
from regard.evaluation.task import Task
from regard.evaluation.translation import read_pairs, reference_likelihood, translate
from regard.models import (
    CTCModel,
    DualEncoderModel,
    GraphModel,
    ImageEncoder,
    LanguageModel,
    Model,
    SequenceClassifier,
    SoundClassifier,
    SpectrogramClassifier,
    SpeechToText,
    TextEncoder,
    Translator,
)
from regard.models.memory_network import MemoryNetworkModel

# --- which models a task is for ---


def _classifies_graphs(level: str) -> Callable[[Model], bool]:
    return lambda model: isinstance(model, GraphModel) and model.level == level


def _translates(model: Model) -> bool:
    return isinstance(model, Translator)


def _continues(model: Model) -> bool:
    return isinstance(model, LanguageModel)


def _fills_masks(model: Model) -> bool:
    return isinstance(model, TextEncoder) and model.spec.head is not None


def _embeds(model: Model) -> bool:
    return isinstance(model, TextEncoder | DualEncoderModel)


def _answers_stories(model: Model) -> bool:
    return isinstance(model, MemoryNetworkModel)


def _classifies_images(model: Model) -> bool:
    if isinstance(model, ImageEncoder):
        return model.spec.labels is not None
    return isinstance(model, DualEncoderModel)


def _reconstructs_images(model: Model) -> bool:
    return isinstance(model, ImageEncoder) and model.spec.pixels is not None


def _compares_images_with_texts(model: Model) -> bool:
    return isinstance(model, DualEncoderModel)


def _classifies_sounds(model: Model) -> bool:
    return isinstance(model, SoundClassifier | SpectrogramClassifier)


def _transcribes(model: Model) -> bool:
    return isinstance(model, SpeechToText | CTCModel)


def _classifies(model: Model) -> bool:
    if isinstance(model, LanguageModel | SequenceClassifier):
        return True
    return _has_head("classify")(model) and not _regresses(model)


def _regresses(model: Model) -> bool:
    if not isinstance(model, TextEncoder) or model.spec.labels is None:
        return False
    # transformers takes one output for a regression, unless the config says otherwise.
    problem_type = model.config.get("problem_type")
    is_number = problem_type == "regression" or (
        problem_type is None and model.spec.labels.count == 1
    )
    return is_number and model.spec.task == "classify"


def _has_head(task: spec.HeadTask) -> Callable[[Model], bool]:
    return lambda model: isinstance(model, TextEncoder) and model.spec.task == task


# --- the table ---

# The first task that a model can do is the one it is evaluated on, unless another is asked for.
TASKS: dict[str, Task] = {
    "translate": Task(
        data="pairs of texts (.tsv, .jsonl, or two files)",
        unit="sentences",
        accepts=_translates,
        example=examples.SOURCE_AND_REFERENCE,
        read=read_pairs,
        predict={"prediction": translate, "likelihood": reference_likelihood},
        metrics=("bleu", "chrf", "exact_match", "perplexity"),
        other_metrics=("loss", "bits_per_character", "rouge1", "rouge2", "rougeL", "wer", "cer"),
    ),
    "summarize": Task(
        data="texts with their summaries (.tsv, .jsonl, or two files)",
        unit="texts",
        accepts=_translates,
        example=examples.SOURCE_AND_REFERENCE,
        read=read_pairs,
        predict={"prediction": translate, "likelihood": reference_likelihood},
        metrics=("rouge1", "rouge2", "rougeL", "perplexity"),
        other_metrics=("bleu", "chrf", "exact_match", "loss", "bits_per_character"),
    ),
    "span": Task(
        data="plain text",
        unit="rows",
        accepts=_translates,
        example=examples.TEXT,
        read=read_text,
        predict={"likelihood": span_likelihood},
        metrics=("loss", "perplexity"),
    ),
    "denoise": Task(
        data="plain text",
        unit="rows",
        accepts=_translates,
        example=examples.TEXT,
        read=read_text,
        predict={"likelihood": denoising_likelihood},
        metrics=("loss", "perplexity"),
    ),
    "causal": Task(
        data="plain text",
        unit="windows",
        accepts=_continues,
        example=examples.TEXT_OR_IDS,
        read=read_text,
        predict={"likelihood": text_likelihood},
        metrics=("loss", "perplexity", "bits_per_character"),
    ),
    "regress": Task(
        data="texts with a number (.tsv or .jsonl)",
        unit="texts",
        accepts=_regresses,
        example=examples.RATED_TEXT,
        read=read_rated_texts,
        predict={"prediction": predict_numbers},
        metrics=("mse", "mae", "pearson"),
    ),
    "tag": Task(
        data="words with tags (CoNLL's columns or .jsonl)",
        unit="sentences",
        accepts=_has_head("tag"),
        example=examples.TAGGED_WORDS,
        read=read_tagged_words,
        predict={"prediction": tag_words},
        metrics=("entity_f1", "tag_accuracy"),
        other_metrics=("exact_match",),
        conditions={"entity_f1": has_entities},
    ),
    "answer": Task(
        data="questions with contexts and answers (.jsonl)",
        unit="questions",
        accepts=_has_head("answer"),
        example=examples.QUESTION,
        read=read_questions,
        predict={"prediction": answer_questions},
        metrics=("answer_exact_match", "answer_f1"),
        other_metrics=("exact_match",),
    ),
    "classify": Task(
        data="texts with labels (.tsv or .jsonl)",
        unit="texts",
        accepts=_classifies,
        example=examples.LABELLED_TEXT,
        read=read_labelled_texts,
        predict={"ranking": rank_labels},
        metrics=("accuracy", "f1"),
        other_metrics=("top_k", "exact_match"),
    ),
    "masked": Task(
        data="plain text",
        unit="rows",
        accepts=_fills_masks,
        example=examples.TEXT,
        read=read_text,
        predict={"prediction": predict_masked, "likelihood": masked_likelihood},
        metrics=("accuracy", "loss", "perplexity"),
    ),
    "replaced": Task(
        data="plain text",
        unit="rows",
        accepts=_has_head("detect"),
        example=examples.TEXT,
        read=read_text,
        predict={"prediction": detect_replaced, "likelihood": replaced_likelihood},
        metrics=("binary_f1", "accuracy"),
        other_metrics=("loss",),
    ),
    "images": Task(
        data="a folder of images with one subfolder for each class",
        unit="images",
        accepts=_classifies_images,
        example=examples.LABELLED_IMAGE,
        read=read_image_folders,
        predict={"ranking": rank_image_classes},
        metrics=("accuracy", "top_k:5"),
        other_metrics=("f1",),
    ),
    "masked_images": Task(
        data="a folder of images",
        unit="images",
        accepts=_reconstructs_images,
        example=examples.CAPTIONED_IMAGE,
        read=read_images,
        predict={"prediction": reconstruct_patches},
        metrics=("mse", "mae"),
    ),
    "image_text": Task(
        data="images with captions: file, a tab, caption (.tsv or .jsonl); or a folder with one "
        "subfolder for each class",
        unit="images",
        accepts=_compares_images_with_texts,
        example=examples.CAPTIONED_IMAGE,
        read=read_captions,
        predict={"ranking": rank_captions},
        metrics=("accuracy", "top_k:5"),
    ),
    "forecast": Task(
        data="a time series (.csv with a header); FILE.csv:START:END are some of its rows",
        unit="windows",
        accepts=forecasts,
        example=examples.SERIES,
        read=read_series_file,
        predict={"prediction": forecast_points, "quantiles": forecast_quantiles},
        metrics=("mse", "mae"),
        other_metrics=("quantile_loss", "coverage"),
    ),
    "nodes": Task(
        data="a folder of tables (nodes.tsv, edges.tsv), or an .npz file",
        unit="nodes",
        accepts=_classifies_graphs("nodes"),
        example=examples.GRAPHS,
        read=read_graph_data,
        predict={"ranking": rank_graph_classes},
        metrics=("accuracy", "f1"),
        other_metrics=("top_k", "exact_match"),
    ),
    "graphs": Task(
        data="a folder of tables (nodes.tsv, edges.tsv), or an .npz file",
        unit="graphs",
        accepts=_classifies_graphs("graphs"),
        example=examples.GRAPHS,
        read=read_graph_data,
        predict={"ranking": rank_graph_classes},
        metrics=("accuracy", "f1"),
        other_metrics=("top_k", "exact_match"),
    ),
    "contrastive": Task(
        data="pairs of texts that belong together (.tsv or .jsonl)",
        unit="pairs",
        accepts=_embeds,
        example=examples.TEXT_PAIR,
        read=read_text_pairs,
        predict={"ranking": rank_pairs},
        metrics=("accuracy", "top_k:5"),
    ),
    "stories": Task(
        data="stories that end with a question, and its answer (.tsv or .jsonl)",
        unit="stories",
        accepts=_answers_stories,
        example=examples.STORY,
        read=read_labelled_texts,
        predict={"ranking": answer_stories},
        metrics=("accuracy",),
        other_metrics=("f1", "top_k", "exact_match"),
    ),
    "sounds": Task(
        data="recordings with classes: a table of file, a tab, class, or a folder with one "
        "subfolder for each class",
        unit="recordings",
        accepts=_classifies_sounds,
        example=examples.RECORDING,
        read=read_labelled_recordings,
        predict={"ranking": rank_sound_classes},
        metrics=("accuracy", "top_k:5"),
        other_metrics=("f1",),
    ),
    "transcribe": Task(
        data="a table of recordings with transcripts: file, a tab, text (or .jsonl)",
        unit="recordings",
        accepts=_transcribes,
        example=examples.RECORDING,
        read=read_transcripts,
        predict={"prediction": transcribe},
        metrics=("wer", "cer"),
        other_metrics=("exact_match", "bleu", "chrf"),
    ),
}


def task_of(model: Model, name: str | None = None) -> str:
    """The task that a model is evaluated on: the one asked for, or the first that it can do."""
    possible = [task for task in TASKS if TASKS[task].accepts(model)]
    if name is not None:
        if name not in TASKS:
            raise SettingError(f"unknown task {name!r}", did_you_mean(str(name), TASKS))
        if name not in possible:
            raise ModelError(
                f"{model!r} does not support the task {name!r}, which reads {TASKS[name].data}",
                f"choose from: {', '.join(possible) or 'none'}",
            )
        return name
    if not possible:
        raise ModelError(
            f"no evaluation task supports {model!r}",
            f"fine-tune it for one of: {', '.join(TASKS)}",
        )
    return possible[0]
