"""Images in folders of classes, and recordings with transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data import text_files
from regard.errors import DataError
from regard.evaluation.classification import check_labels
from regard.evaluation.task import DataPath, Outputs, Settings
from regard.evaluation.translation import one_path
from regard.models import CTCModel, DualEncoderModel, ImageEncoder, SpeechToText

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
CAPTION = "a photo of a {}."  # of zero-shot classification (Radford et al. 2021, section 3.1.4)


@dataclass(frozen=True)
class LabelledFile:
    """An image with its class, or a recording with its transcript."""

    path: Path
    label: str


def read_image_folders(data: DataPath) -> list[LabelledFile]:
    """The images of a folder: each of its subfolders is a class, by its name."""
    folder = Path(one_path(data))
    examples = [
        LabelledFile(path, path.parent.name)
        for path in sorted(folder.glob("*/*"))
        if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not examples:
        raise DataError(
            f"{folder} holds no images in subfolders",
            "give a folder with one subfolder of images for each class",
        )
    return examples


def rank_image_classes(
    model: ImageEncoder | DualEncoderModel, examples: Sequence[LabelledFile], settings: Settings
) -> Outputs:
    """The classes of each image, the likeliest first; of CLIP, by captions of the classes."""
    labels = [example.label for example in examples]
    paths = [example.path for example in examples]
    if isinstance(model, ImageEncoder):
        check_labels(labels, model.labels)
        return Outputs([list(scores) for scores in model.classify([*paths])], labels)
    classes = {CAPTION.format(label.replace("_", " ")): label for label in sorted(set(labels))}
    scored = model.classify([*paths], list(classes))
    return Outputs([[classes[caption] for caption in scores] for scores in scored], labels)


def read_transcripts(data: DataPath) -> list[LabelledFile]:
    """A table of recordings: the file, relative to the table, a tab, and its transcript."""
    table = Path(one_path(data))
    examples = []
    for name, transcript in text_files.pairs(table, format="tsv"):
        path = table.parent / name
        if not path.is_file():
            raise DataError(
                f"{table} names {name}, which does not exist", f"put it into {table.parent}"
            )
        examples.append(LabelledFile(path, transcript))
    return examples


def transcribe(
    model: SpeechToText | CTCModel, examples: Sequence[LabelledFile], settings: Settings
) -> Outputs:
    """The transcript of each recording."""
    paths = [example.path for example in examples]
    references = [example.label for example in examples]
    if isinstance(model, CTCModel):
        return Outputs(model.transcribe([*paths]), references)
    strategy = settings.decoding.strategy
    return Outputs(model.transcribe([*paths], strategy=strategy), references)
