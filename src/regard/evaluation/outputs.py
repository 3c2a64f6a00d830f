"""The outputs of models for examples: labels, tags, answers, rankings, texts, forecasts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.finite_outputs import require_finite
from regard.data.audio import RATE
from regard.data.boxes import BoxedImage
from regard.data.graphs import GraphData
from regard.data.image_questions import ImageQuestion
from regard.data.labelled import (
    LabelledImage,
    LabelledText,
    Question,
    RatedText,
    Recording,
    TaggedWords,
    TextPair,
    class_caption,
)
from regard.data.masks import NO_CLASS, SegmentedImage
from regard.data.series import Series, windows
from regard.data.speech import whole_log_mel
from regard.data.tag_alignment import align_words, word_tags
from regard.data.trajectories import Trajectory
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.metrics.regression import point_forecasts
from regard.evaluation.task import Outputs, Settings
from regard.models import (
    DualEncoderModel,
    GraphModel,
    ImageCaptioner,
    ImageEncoder,
    ImageGenerator,
    Policy,
    SeriesModel,
    TextEncoder,
    Translator,
    VisualQuestionModel,
)
from regard.models.inputs.sound import read_recordings
from regard.models.inputs.token_batches import smaller_limit
from regard.models.labels import label_scores
from regard.models.memory_network import MemoryNetworkModel
from regard.models.object_detector import ObjectDetector
from regard.system.errors import DataError


def rank_labels(model: Any, examples: Sequence[LabelledText], settings: Settings) -> Outputs:
    """The labels of each text, the likeliest first; of a language model, those of its prompt."""
    labels = [example.label for example in examples]
    if model.labels is None:
        # Zero-shot: the labels of the data, as continuations of a prompt without examples.
        texts = ["\n".join(filter(None, (one.text, one.text2))) for one in examples]
        prompted = model.classify(texts, sorted(set(labels)))
        return Outputs([list(scores) for scores in prompted], labels)
    check_labels(labels, model.labels)
    inputs: list[Any] = [example.whole for example in examples]  # texts, or pairs of texts
    logits = model.logits(inputs, truncation=True, max_length=settings.max_length)
    return Outputs([list(label_scores(row, model.labels)) for row in logits], labels)


def check_labels(labels: Sequence[str], names: Sequence[str]) -> None:
    """Refuses data with labels that the model cannot predict."""
    unknown = sorted(set(labels) - set(names))
    if unknown:
        raise DataError(
            f"the label {unknown[0]!r} is not a class of the model ({len(unknown)} unknown labels)",
            f"use the labels of the model: {', '.join(names[:20])}",
        )


def predict_numbers(
    model: TextEncoder, examples: Sequence[RatedText], settings: Settings
) -> Outputs:
    """The number of each text, by a head with one output."""
    inputs = [example.whole for example in examples]
    logits = model.logits(inputs, truncation=True, max_length=settings.max_length)  # [1] each
    return Outputs([float(row[0]) for row in logits], [example.score for example in examples])


def tag_words(model: TextEncoder, examples: Sequence[TaggedWords], settings: Settings) -> Outputs:
    """The tag of each word of a sentence, at its first token.

    Words behind the length limit have the tag O, which is utterances.
    """
    limit = smaller_limit(settings.max_length, model.spec.max_length)
    aligned = align_words(model.tokenizer, examples, limit)
    texts = [" ".join(example.tokens) for example in examples]
    logits = model.logits(texts, truncation=True, max_length=limit)  # [T, labels] each
    names = model.require_labels()
    references = [example.tags for example in examples]
    check_labels([tag for tags in references for tag in tags if tag], names)
    predictions = []
    for (_, words), row, expected in zip(aligned, logits, references, strict=True):
        labels = [names[label] for label in row.argmax(dim=-1).tolist()]
        predictions.append(word_tags(words, labels, len(expected)))
    return Outputs(predictions, references)


def has_entities(rows: Iterable[Sequence[str]]) -> bool:
    """Whether tags are of the kind B-x, I-x, O; parts of speech are not."""
    return any(tag.startswith("B-") for tags in rows for tag in tags)


def answer_questions(
    model: TextEncoder, examples: Sequence[Question], settings: Settings
) -> Outputs:
    """The answer to each question; none where that is likelier than the best span."""
    questions = [example.question for example in examples]
    contexts = [example.context for example in examples]
    answers = model.answer(questions, contexts)
    texts = [answer.text if answer.probability >= answer.none else "" for answer in answers]
    return Outputs(texts, [example.text for example in examples])


def rank_graph_classes(
    model: GraphModel, examples: Sequence[GraphData], settings: Settings
) -> Outputs:
    """The classes of labelled nodes or graphs, likeliest first: of the split `test`, if there is
    one, otherwise of all."""
    rankings = []
    references = []
    names = model.require_labels()
    for data in examples:
        # A file with splits was used for training: only its test split is evaluated.
        rows = data.rows("test") or [i for i, label in enumerate(data.labels) if label]
        if not rows:
            raise DataError("the graph data has no labels", "add labels to the data")
        order = model.logits(data)[rows].argsort(dim=-1, descending=True, stable=True)
        rankings += [[names[i] for i in row] for row in order.tolist()]
        references += [data.labels[row] for row in rows]
    check_labels(references, names)
    return Outputs(rankings, references)


# --- pairs of sentences (retrieval by similarity) and stories with questions ---


MAX_CANDIDATES = 1000  # of a ranking
STORIES_AT_ONCE = 64


def rank_pairs(model: Any, pairs: Sequence[TextPair], settings: Settings) -> Outputs:
    """The second texts of all pairs, the most similar first, for each first text.

    Similarity is the cosine of sentence vectors; the references are the numbers of the pairs.
    """
    texts = ([pair.text for pair in pairs], [pair.text2 for pair in pairs])
    first, second = (
        functional.normalize(model.text_encoder.embed(one, truncation=True), dim=-1)
        for one in texts
    )
    return Outputs(_ranked(first @ second.mT), range(len(pairs)))


def _ranked(scores: Tensor) -> list[list[int]]:
    """The columns of each row [N, columns], the greatest first."""
    best = scores.topk(min(MAX_CANDIDATES, scores.shape[1]), dim=1).indices
    columns: list[list[int]] = best.tolist()
    return columns


def answer_stories(
    model: MemoryNetworkModel, examples: Sequence[LabelledText], settings: Settings
) -> Outputs:
    """The words that answer the question at the end of each story, the likeliest first."""
    answers = [example.label for example in examples]
    if not any(model.tokenizer.token_to_id(answer) is not None for answer in answers):
        raise DataError(
            f"none of the answers, such as {answers[0]!r}, is in the vocabulary of the model",
            "pass stories in the language of its training data",
        )
    rankings: list[list[str]] = []
    for first in range(0, len(examples), STORIES_AT_ONCE):
        batch = examples[first : first + STORIES_AT_ONCE]
        with torch.inference_mode():
            inputs = model.tokens([example.text for example in batch])
            hidden, _ = model.model(*inputs.values())
            logits = require_finite(model.model.head(hidden), model.model)  # [B, V]
        rankings += map(model.tokenizer.tokens, _ranked(logits))
    return Outputs(rankings, answers)


# --- images and recordings ---


def reconstruct_patches(
    model: ImageEncoder, examples: Sequence[LabelledImage], settings: Settings
) -> Outputs:
    """The pixels of masked patches, and what was there, as the loss has them: [M, P] each."""
    images = [example.image for example in examples]
    reconstructions = model.reconstruct(images, seed=settings.reading.seed)
    return Outputs(
        [one.predicted for one in reconstructions], [one.targets for one in reconstructions]
    )


def detect_objects(
    model: ObjectDetector, examples: Sequence[BoxedImage], settings: Settings
) -> Outputs:
    """The class, the score and the corners of what each query detects, and of each object."""
    references = [[*example.boxes] for example in examples]
    check_labels([one.label for row in references for one in row], model.require_labels())
    detections = model.detect([example.image for example in examples], threshold=0.0)
    predictions = [[(one.label, one.score, one.box) for one in row] for row in detections]
    return Outputs(predictions, references)


def segment_images(model: Any, examples: Sequence[SegmentedImage], settings: Settings) -> Outputs:
    """The class of each pixel, by its number in the data; 255 where these do not know the class."""
    names = examples[0].names
    check_labels(names, model.require_labels())
    numbers = np.array([model.require_labels().index(name) for name in names], np.uint8)
    in_data = np.full(NO_CLASS + 1, NO_CLASS, np.uint8)
    in_data[numbers] = np.arange(len(names), dtype=np.uint8)
    segments = model.segment([example.image for example in examples])
    return Outputs([in_data[one.mask] for one in segments], [example.mask for example in examples])


def rank_image_classes(
    model: Any, examples: Sequence[LabelledImage], settings: Settings
) -> Outputs:
    """The classes of each image, the likeliest first; of CLIP, by captions of the classes."""
    labels = [example.text for example in examples]
    images = [example.image for example in examples]
    if model.labels is not None:
        check_labels(labels, model.labels)
        return Outputs([list(scores) for scores in model.classify(images)], labels)
    classes = {class_caption(label): label for label in sorted(set(labels))}
    scored = model.classify(images, list(classes))
    return Outputs([[classes[caption] for caption in scores] for scores in scored], labels)


def rank_captions(
    model: DualEncoderModel, examples: Sequence[LabelledImage], settings: Settings
) -> Outputs:
    """The different captions of the examples for each image, the most similar first."""
    captions = [example.text for example in examples]
    candidates = sorted(set(captions))
    texts = functional.normalize(model.text_encoder.embed(candidates, truncation=True), dim=-1)
    images = model.embed_image([example.image for example in examples])
    return Outputs(rank_by_similarity(images, texts, candidates), captions)


def rank_by_similarity(images: Tensor, texts: Tensor, captions: Sequence[str]) -> list[list[str]]:
    """The captions of these texts for each image, the most similar first."""
    return [[captions[i] for i in row] for row in _ranked(images @ texts.mT)]


def rank_sound_classes(model: Any, examples: Sequence[Recording], settings: Settings) -> Outputs:
    """The classes of each recording, the likeliest first."""
    labels = [example.text for example in examples]
    check_labels(labels, model.labels)
    sounds = [example.audio for example in examples]
    return Outputs(
        [list(scores) for scores in model.classify([*sounds], sampling_rate=RATE)], labels
    )


def transcribe(model: Any, examples: Sequence[Recording], settings: Settings) -> Outputs:
    """The transcript of each recording."""
    sounds = [example.audio for example in examples]
    options: dict[str, Any] = {"sampling_rate": RATE}
    # A CTC model decodes nothing: it has no tokens that frame a text.
    if model.special_tokens is not None:
        options["strategy"] = settings.decoding.strategy
    return Outputs(model.transcribe(sounds, **options), [example.text for example in examples])


def speak(model: Any, examples: Sequence[Recording], settings: Settings) -> Outputs:
    """The spectrogram of each text as the model says it, and that of its recording."""
    utterances = model.speak([example.text for example in examples])
    recordings = read_recordings([example.audio for example in examples], model.say, RATE)
    mels = utterances[0].spectrogram.shape[1]
    references = [whole_log_mel(samples, mels).T.numpy() for samples in recordings]
    return Outputs([one.spectrogram for one in utterances], references)


def rank_answers(
    model: VisualQuestionModel, examples: Sequence[ImageQuestion], settings: Settings
) -> Outputs:
    """The answers to each question about an image, the likeliest first."""
    questions = [example.question for example in examples]
    scores = model.answers(questions, [example.image for example in examples])
    return Outputs([list(one) for one in scores], [example.answer for example in examples])


def write_captions(
    model: ImageCaptioner, examples: Sequence[LabelledImage], settings: Settings
) -> Outputs:
    """What the model writes about each image."""
    images = [example.image for example in examples]
    texts = model.caption(images, strategy=settings.decoding.strategy)
    return Outputs(texts, [example.text for example in examples])


def image_likelihood(
    model: ImageGenerator, examples: Sequence[LabelledImage], settings: Settings
) -> Outputs:
    """−log p of the tokens of each image, given its text."""
    texts = [example.text for example in examples]
    count = model.image_length
    values = [(nll, count) for nll in model.nlls(texts, [example.image for example in examples])]
    return Outputs(values, texts)


# --- trajectories: what comes where the return of an episode is asked for ---


def roll_out(model: Policy, examples: Sequence[Trajectory], settings: Settings) -> Outputs:
    """The returns that come in the environment: an episode from each first state, in which the
    return of the example is asked for."""
    asked = [one.total for one in examples]
    starts = np.stack([one.states[0] for one in examples])
    return Outputs(model.roll_out(asked, starts=starts).tolist(), asked)


# --- forecasts: every window of a series, on standardized values ---


def forecast_points(model: SeriesModel, examples: Sequence[Series], settings: Settings) -> Outputs:
    """The forecasts of all windows as points, the median of quantiles: [H, C] each."""
    predicted, references = _forecasts(model, examples)
    points = point_forecasts(predicted, model.output.levels)
    return Outputs(list(points), list(references))


def forecast_quantiles(
    model: SeriesModel, examples: Sequence[Series], settings: Settings
) -> Outputs:
    """The levels and the quantiles [H, C, Q] of all windows."""
    # Points have no interval to cover anything.
    levels = model.output.levels
    if levels is None:
        raise DataError("this model does not forecast quantiles", "use the metrics mse and mae")
    predicted, references = _forecasts(model, examples)
    return Outputs([(levels, one) for one in predicted], list(references))


def _forecasts(model: SeriesModel, examples: Sequence[Series]) -> tuple[Any, Any]:
    """Forecasts [N, H, C] or [N, H, C, Q], and what came: [N, H, C]."""
    length = model.length
    horizon = model.horizon
    parts = []
    references = []
    for series in examples:
        values = model.standardized(series)
        if len(values) < length + horizon:
            raise DataError(
                f"a series of {len(values)} steps is shorter than a window of {length} plus a "
                f"horizon of {horizon}",
                "pass a longer series",
            )
        # On standardized values: errors of channels with other units could not be added.
        both = windows(values, length + horizon)
        features = model.time_features(series)
        if features is not None:
            features = windows(features, length + horizon)
        parts += list(model.forecasts(both[:, :length], features))
        references.append(both[:, length:])
    return np.concatenate(parts), np.concatenate(references)


# --- translation and whatever else maps text to text ---


WARMUP = 8  # sentences that are decoded before the clock starts

Pair = tuple[str, str]


def translate(model: Translator, pairs: Sequence[Pair], settings: Settings) -> Outputs:
    """The translation of each source; an empty one where the search found none."""
    sources = [settings.prefix + source for source, _ in pairs]
    options = settings.decoding
    decoding = model.settings(options.strategy, options.limit, options.batch_tokens)
    if options.precision is not None:
        # float32 is packed too, for the matrix kernels of a CPU.
        model.prepare_for_inference(options.precision)
        model.hypotheses(sources[:WARMUP], decoding)
    start = time.perf_counter()
    results = model.hypotheses(sources, decoding)
    seconds = time.perf_counter() - start
    # A sentence may have no hypothesis, where none ends within the length limit.
    texts = [model.text(hypotheses[0]) if hypotheses else "" for hypotheses in results]
    tokens = sum(len(hypotheses[0].tokens) for hypotheses in results if hypotheses)
    return Outputs(texts, [reference for _, reference in pairs], tokens, seconds)


def reference_likelihood(model: Translator, pairs: Sequence[Pair], settings: Settings) -> Outputs:
    """−log p of each reference given its source, by teacher forcing, unsmoothed."""
    references = [reference for _, reference in pairs]
    eos = model.special_tokens.end
    sources = model.encode([settings.prefix + source for source, _ in pairs])
    targets = [[*ids, eos] for ids in model.target_tokenizer.encode_batch(references)]
    return Outputs(model.row_nlls(sources, targets), references)


# --- predictions by other outputs ---


def predictions_of(kind: OutputKind, values: Sequence[Any]) -> Sequence[Any]:
    """The predictions of other outputs: the first candidate, or the quantile nearest the median."""
    if kind == "ranking":
        return [candidates[0] for candidates in values]
    return [point_forecasts(forecast, levels) for levels, forecast in values]
