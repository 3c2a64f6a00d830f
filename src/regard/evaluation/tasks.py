"""The one table of tasks: what models are trained for, asked for and scored by.

`regard.train`, `evaluate`, `predict`, the model card and the studio read it. A task that is trained
has the name of its objective, one that is asked for that of a method of the models that have it.
The first task of a model in the order of the table is its own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from regard.evaluation import answers, examples
from regard.evaluation.answers import of_method
from regard.evaluation.corrupted_text import (
    Infilling,
    Spans,
    detect_replaced,
    masked_likelihood,
    predict_masked,
    replaced_likelihood,
    restored_likelihood,
)
from regard.evaluation.language_modelling import sample_molecules, text_likelihood
from regard.evaluation.mutations import masked_marginals
from regard.evaluation.outputs import (
    answer_questions,
    answer_stories,
    detect_objects,
    forecast_points,
    forecast_quantiles,
    has_entities,
    image_likelihood,
    predict_numbers,
    rank_answers,
    rank_captions,
    rank_graph_classes,
    rank_image_classes,
    rank_labels,
    rank_pairs,
    rank_sound_classes,
    reconstruct_patches,
    reference_likelihood,
    roll_out,
    segment_images,
    speak,
    tag_words,
    transcribe,
    translate,
    write_captions,
)
from regard.evaluation.task import Card, Task
from regard.models.base import Model
from regard.system.errors import ModelError, SettingError, did_you_mean

NEW_TOKENS = 50  # of a language model's continuation
_LOAD = 'model = regard.load("FOLDER")'
_CLASSIFY_TEXT = 'regard.load("FOLDER").classify("a text")'


def _by_name(*metrics: str) -> dict[str, str]:
    return {name: name for name in metrics}


_TRANSLATION_SCORES = _by_name("bleu", "chrf", "exact_match")
_CLASS_SCORES = _by_name("accuracy", "f1")

# What tasks of a kind have in common.
_ROWS = Task(unit="rows", reads=examples.TEXT, metrics=("loss", "perplexity"))
_CLASSES = Task(
    method="classify",
    answer=answers.classify,
    options=("labels", "top", "truncation"),
    reads_media=True,
    unit="texts",
    reads=examples.LABELLED_TEXT,
    predict={"ranking": rank_labels},
    metrics=("accuracy", "f1"),
    other_metrics=("top_k", "exact_match"),
    scores=_CLASS_SCORES,
    card=Card("text-classification", "A classifier of texts", _CLASSIFY_TEXT),
)
_RANKED = Task(
    unit="images",
    metrics=("accuracy", "top_k:5"),
    other_metrics=("f1",),
    scores=_CLASS_SCORES | {"top_5": "top_k:5"},
)
_TRANSLATE = Task(
    method="translate",
    answer=of_method("translate"),
    unit="sentences",
    reads=examples.SOURCE_AND_REFERENCE,
    predict={"prediction": translate, "likelihood": reference_likelihood},
    metrics=("bleu", "chrf", "exact_match", "perplexity"),
    other_metrics=("loss", "bits_per_character", "rouge1", "rouge2", "rougeL", "wer", "cer"),
    decodes=True,
    scores=_TRANSLATION_SCORES,
    card=Card(
        "translation",
        "A Transformer for translation",
        "regard translate FOLDER < source.txt > target.txt",
    ),
)
_SUMMARIZE = replace(
    _TRANSLATE,
    method="",
    answer=None,
    unit="texts",
    metrics=("rouge1", "rouge2", "rougeL", "perplexity"),
    other_metrics=("bleu", "chrf", "exact_match", "loss", "bits_per_character"),
    scores=_by_name("rouge1", "rouge2", "rougeL") | _TRANSLATION_SCORES,
    card=Card(
        "summarization",
        "An encoder–decoder that summarises",
        "regard translate FOLDER < texts > summaries",
    ),
)
_ERRORS = ("word_error", "per")
_PRONOUNCE = replace(
    _TRANSLATE,
    method="",
    answer=None,
    unit="words",
    metrics=(*_ERRORS, *(f"{name}:unstressed" for name in _ERRORS)),
    other_metrics=("exact_match", "loss", "perplexity"),
    scores=_by_name(*_ERRORS) | {f"{name}_unstressed": f"{name}:unstressed" for name in _ERRORS},
    card=Card(
        "text2text-generation",
        "A Transformer that pronounces words, letter by letter",
        'echo "h e l l o" | regard translate FOLDER',
    ),
)
_MASKED_IMAGES = Task(
    unit="images",
    reads=examples.IMAGE,
    predict={"prediction": reconstruct_patches},
    metrics=("mse", "mae"),
    scores=_by_name("mse", "mae"),
    card=Card(
        "image-feature-extraction",
        "An encoder of images, trained to fill in masked patches",
        "regard train --base FOLDER --objective images --images CLASSES",
    ),
)
_NODES = replace(
    _CLASSES,
    answer=answers.classify_graphs,
    options=("top",),
    reads_media=False,
    names_parts=True,
    unit="nodes",
    reads=examples.GRAPHS,
    predict={"ranking": rank_graph_classes},
    card=Card(
        "graph-ml",
        "A classifier of the nodes of a graph",
        'regard.load("FOLDER").classify("graph/")',
    ),
)
_GRAPHS = replace(
    _NODES,
    unit="graphs",
    card=Card("graph-ml", "A classifier of graphs", 'regard.load("FOLDER").classify("graphs/")'),
)

TASKS: dict[str, Task] = {
    # --- texts from texts ---
    "translate": _TRANSLATE,
    "summarize": _SUMMARIZE,
    "pronounce": _PRONOUNCE,
    "span": replace(
        _ROWS,
        predict={"likelihood": partial(restored_likelihood, Spans)},
        card=Card("text2text-generation", "An encoder–decoder that fills in hidden spans", _LOAD),
    ),
    "denoise": replace(
        _ROWS,
        predict={"likelihood": partial(restored_likelihood, Infilling)},
        card=Card("text2text-generation", "An encoder–decoder that restores texts", _LOAD),
    ),
    "causal": Task(
        unit="windows",
        reads=examples.TEXT_OR_IDS,
        predict={"likelihood": text_likelihood},
        metrics=("loss", "perplexity", "bits_per_character"),
        card=Card(
            "text-generation", "A language model", 'regard generate FOLDER "Once upon a time"'
        ),
    ),
    # What a model writes by itself, beside the molecules that it has read.
    "molecules": Task(
        unit="molecules",
        reads=examples.TEXT,
        predict={"prediction": sample_molecules},
        metrics=("valid", "unique", "novel"),
        decodes=True,
    ),
    "transcribe": Task(
        method="transcribe",
        answer=of_method("transcribe"),
        reads_media=True,
        unit="recordings",
        reads=examples.TRANSCRIPT,
        predict={"prediction": transcribe},
        metrics=("wer", "cer"),
        other_metrics=("exact_match", "bleu", "chrf"),
        decodes=True,
        scores=_by_name("wer", "cer", "exact_match"),
        card=Card(
            "automatic-speech-recognition",
            "A model that transcribes speech",
            'regard.load("FOLDER").transcribe("speech.wav")',
        ),
    ),
    "speak": Task(
        method="speak",
        answer=answers.speak,
        unit="recordings",
        reads=examples.SPOKEN_TEXT,
        predict={"prediction": speak},
        metrics=("mcd",),
        scores=_by_name("mcd"),
        card=Card(
            "text-to-speech", "A model that speaks", 'regard speak FOLDER "a text" --out a.wav'
        ),
    ),
    # --- heads of encoders of text ---
    "answer": Task(
        method="answer",
        answer=answers.answer,
        options=("context",),
        unit="questions",
        reads=examples.QUESTION,
        predict={"prediction": answer_questions},
        metrics=("answer_exact_match", "answer_f1"),
        other_metrics=("exact_match",),
        scores={"exact_match": "answer_exact_match", "f1": "answer_f1"},
        card=Card(
            "question-answering",
            "A finder of answers",
            'regard.load("FOLDER").answer("question?", "context")',
        ),
    ),
    "tag": Task(
        method="tag",
        answer=of_method("tag"),
        unit="sentences",
        reads=examples.TAGGED_WORDS,
        predict={"prediction": tag_words},
        metrics=("entity_f1", "tag_accuracy"),
        other_metrics=("exact_match",),
        conditions={"entity_f1": lambda rows: has_entities(one.tags for one in rows)},
        scores={"accuracy": "tag_accuracy", "f1": "entity_f1"},
        card=Card(
            "token-classification", "A tagger of words", 'regard.load("FOLDER").tag("a text")'
        ),
    ),
    "entities": Task(method="entities", answer=of_method("entities")),
    "regress": Task(
        unit="texts",
        reads=examples.RATED_TEXT,
        predict={"prediction": predict_numbers},
        metrics=("mse", "mae", "pearson", "spearman"),
        scores=_by_name("mse", "mae", "pearson", "spearman"),
        card=Card("text-classification", "A model that rates texts by a number", _CLASSIFY_TEXT),
    ),
    "classify": _CLASSES,
    "follows": Task(method="follows", answer=answers.follows),
    # Of replaced tokens in texts (ELECTRA), and of objects in images (DETR).
    "detect": Task(
        method="detect",
        answer=of_method("detect"),
        reads_media=True,
        unit="images",
        reads=examples.BOXED_IMAGE,
        predict={"prediction": detect_objects},
        metrics=("ap", "ap50"),
        other_metrics=("ap75",),
        scores=_by_name("ap", "ap50", "ap75"),
        card=Card(
            "object-detection",
            "A detector of objects in images",
            'regard.load("FOLDER").detect("image.png")',
        ),
    ),
    "fill": Task(method="fill", answer=answers.fill, options=("top",)),
    "generate": Task(
        method="generate",
        answer=of_method("generate", max_new_tokens=NEW_TOKENS),
        options=("truncation",),
    ),
    "masked": replace(
        _ROWS,
        predict={"prediction": predict_masked, "likelihood": masked_likelihood},
        metrics=("accuracy", "loss", "perplexity"),
        card=Card("fill-mask", "An encoder that fills in hidden tokens", _LOAD),
    ),
    # Variants of a protein, by how likely the model finds them.
    "mutations": Task(
        unit="variants",
        reads=examples.RATED_TEXT,
        predict={"prediction": masked_marginals},
        metrics=("spearman",),
        other_metrics=("pearson",),
    ),
    "replaced": replace(
        _ROWS,
        predict={"prediction": detect_replaced, "likelihood": replaced_likelihood},
        metrics=("binary_f1", "accuracy"),
        other_metrics=("loss",),
        card=Card("feature-extraction", "An encoder that finds replaced tokens", _LOAD),
    ),
    # --- images ---
    "images": replace(
        _RANKED,
        reads=examples.LABELLED_IMAGE,
        predict={"ranking": rank_image_classes},
        card=Card(
            "image-classification",
            "A classifier of images",
            'regard.load("FOLDER").classify("image.png")',
        ),
    ),
    "segment": Task(
        method="segment",
        answer=answers.segment,
        reads_media=True,
        unit="images",
        reads=examples.SEGMENTED_IMAGE,
        predict={"prediction": segment_images},
        metrics=("miou", "pixel_accuracy"),
        scores=_by_name("miou", "pixel_accuracy"),
        card=Card(
            "image-segmentation",
            "A segmenter of images: the class of each pixel",
            'regard.load("FOLDER").segment("image.png").mask',
        ),
    ),
    "vqa": replace(
        _RANKED,
        method="answer",
        answer=answers.answer_images,
        options=("top",),
        unit="questions",
        reads=examples.IMAGE_QUESTION,
        predict={"ranking": rank_answers},
        card=Card(
            "visual-question-answering",
            "A model that answers questions about images",
            'regard.load("FOLDER").answer("is there a circle?", "image.png")',
        ),
    ),
    "caption": Task(
        method="caption",
        answer=of_method("caption"),
        reads_media=True,
        unit="images",
        reads=examples.CAPTIONED_IMAGE,
        predict={"prediction": write_captions},
        metrics=("bleu", "chrf", "exact_match"),
        other_metrics=("rouge1", "rouge2", "rougeL", "wer"),
        decodes=True,
        scores=_TRANSLATION_SCORES,
        card=Card(
            "image-to-text",
            "A model that captions images",
            'regard.load("FOLDER").caption("image.png")',
        ),
    ),
    "draw": Task(
        method="draw",
        answer=answers.draw,
        unit="images",
        reads=examples.CAPTIONED_IMAGE,
        predict={"likelihood": image_likelihood},
        metrics=("loss", "perplexity"),
        scores=_by_name("loss", "perplexity"),
        card=Card("text-to-image", "A model that draws", 'regard draw FOLDER "a text" --out a.png'),
    ),
    "masked_images": _MASKED_IMAGES,
    "clips": replace(
        _RANKED,
        unit="clips",
        reads=examples.LABELLED_CLIP,
        predict={"ranking": rank_image_classes},
        card=Card(
            "video-classification",
            "A classifier of clips",
            'regard.load("FOLDER").classify("clip.gif")',
        ),
    ),
    "masked_clips": replace(
        _MASKED_IMAGES,
        unit="clips",
        reads=examples.CLIP,
        card=Card(
            "feature-extraction",
            "An encoder of clips, trained to fill in masked tubelets",
            "regard train --base FOLDER --objective clips --images CLASSES",
        ),
    ),
    "image_text": replace(
        _RANKED,
        reads=examples.CAPTIONED_IMAGE,
        predict={"ranking": rank_captions},
        other_metrics=("mean_rank",),
        card=Card(
            "zero-shot-image-classification",
            "A dual encoder of images and texts",
            'regard.load("FOLDER").classify("image.png", ["a photo of a cat", "a photo of a dog"])',
        ),
    ),
    # --- series, trajectories, graphs, stories, sounds ---
    "forecast": Task(
        method="forecast",
        answer=answers.forecast,
        options=("samples",),
        unit="windows",
        reads=examples.SERIES,
        predict={"prediction": forecast_points, "quantiles": forecast_quantiles},
        metrics=("mse", "mae"),
        other_metrics=("quantile_loss", "coverage"),
        scores=_by_name("mse", "mae", "quantile_loss", "coverage"),
        card=Card(
            "time-series-forecasting",
            "A forecaster of time series",
            'regard.load("FOLDER").forecast("series.csv")',
        ),
    ),
    "act": Task(
        method="act",
        answer=of_method("act"),
        reads_media=True,
        unit="episodes",
        reads=examples.TRAJECTORIES,
        predict={"prediction": roll_out},
        metrics=("mae", "spearman", "mean_return"),
        other_metrics=("pearson", "mse"),
        scores=_by_name("mae", "spearman", "mean_return"),
        card=Card(
            "reinforcement-learning",
            "A policy that is asked for a return",
            'regard.load("FOLDER").roll_out([200.0])',
        ),
    ),
    "nodes": _NODES,
    "graphs": _GRAPHS,
    "stories": replace(
        _CLASSES,
        method="answer",
        answer=answers.answer_stories,
        options=("context", "top"),
        reads_media=False,
        unit="stories",
        reads=examples.STORY,
        predict={"ranking": answer_stories},
        metrics=("accuracy",),
        other_metrics=("f1", "top_k", "exact_match"),
        card=Card(
            "question-answering",
            "A memory network that answers questions about stories",
            'regard.load("FOLDER").answer("Where is Mary?", "Mary went to the garden.")',
        ),
    ),
    "sounds": replace(
        _RANKED,
        unit="recordings",
        reads=examples.LABELLED_RECORDING,
        predict={"ranking": rank_sound_classes},
        card=Card(
            "audio-classification",
            "A classifier of recordings",
            'regard.load("FOLDER").classify("sound.wav")',
        ),
    ),
    "speech_contrastive": Task(
        card=Card(
            "feature-extraction",
            "An encoder of speech, to fine-tune",
            "regard train --base FOLDER --objective ctc --sounds TABLE",
        ),
    ),
    # --- vectors ---
    "contrastive": Task(
        unit="pairs",
        reads=examples.TEXT_PAIR,
        predict={"ranking": rank_pairs},
        metrics=("accuracy", "top_k:5"),
        scores=_by_name("accuracy"),
        card=Card(
            "sentence-similarity",
            "An encoder of sentence vectors",
            'regard.load("FOLDER").embed("a text")',
        ),
    ),
    "embed": Task(
        method="embed",
        answer=of_method("embed"),
        options=("truncation",),
        reads_media=True,
    ),
    "embed_image": Task(method="embed_image", answer=of_method("embed_image"), reads_media=True),
    "embed_text": Task(method="embed_text", answer=of_method("embed_text")),
}


def task_of(model: Model, name: str | None = None) -> str:
    """The task that a model is evaluated on: the one asked for, or the first that it can do."""
    possible = [task for task in TASKS if task in model.evaluations]
    if name is None and possible:
        return possible[0]
    scored = [task for task in TASKS if TASKS[task].predict]
    if name is None:
        raise ModelError(
            f"no evaluation task supports {model!r}",
            f"fine-tune it for one of: {', '.join(scored)}",
        )
    if name not in scored:
        raise SettingError(f"unknown task {name!r}", did_you_mean(str(name), scored))
    if name not in possible:
        raise ModelError(
            f"{model!r} does not support the task {name!r}, which reads {TASKS[name].reads.file}",
            f"choose from: {', '.join(possible) or 'none'}",
        )
    return name
