"""Images in folders of classes, and recordings with transcripts or classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.nn import functional

from regard.data.audio import RATE
from regard.data.labelled_media import LabelledImage, Recording, class_caption
from regard.evaluation.classification import check_labels
from regard.evaluation.retrieval import MAX_CANDIDATES
from regard.evaluation.task import Outputs, Settings
from regard.models import DualEncoderModel, ImageEncoder


def reconstruct_patches(
    model: ImageEncoder, examples: Sequence[LabelledImage], settings: Settings
) -> Outputs:
    """The pixels of masked patches, and what was there, as the loss has them: [M, P] each."""
    images = [example.image for example in examples]
    reconstructions = model.reconstruct(images, seed=settings.reading.seed)
    return Outputs(
        [one.predicted for one in reconstructions], [one.targets for one in reconstructions]
    )


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
    similarity = images @ texts.mT  # [images, candidates]
    nearest = similarity.topk(min(MAX_CANDIDATES, len(candidates)), dim=1).indices
    rankings = [[candidates[i] for i in row] for row in nearest.tolist()]
    return Outputs(rankings, captions)


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
    # A CTC model decodes nothing: it has no tokens that frame a text.
    decodes = model.special_tokens is not None
    options: dict[str, Any] = {"sampling_rate": RATE}
    if decodes:
        options["strategy"] = settings.decoding.strategy
    return Outputs(model.transcribe(sounds, **options), [example.text for example in examples])
