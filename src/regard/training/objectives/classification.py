"""Classification: one class for each text, image, recording, story, node or graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec
from regard.data import labelled
from regard.data.batching import Batch, Rows
from regard.data.generated import babi_stories
from regard.data.graphs import GraphData
from regard.data.labelled import LabelledText
from regard.data.padding import IGNORED
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_training import word_level_json
from regard.data.training_coverage import InputStatistics, row_statistics
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.scores import Score, scored
from regard.evaluation.task import Outputs
from regard.families import presets
from regard.families.vision import vilt
from regard.models import GraphModel, Model
from regard.models.memory_network import MemoryNetworkModel, pad_stories, split_sentences
from regard.system.errors import DataError, ModelError
from regard.training import model_spec
from regard.training.data.clip_sources import LabelledClips
from regard.training.data.graph_sources import Graphs, GraphSource, Nodes
from regard.training.data.image_sources import PREVIOUS, Images, LabelledImages
from regard.training.data.image_text_sources import ImageQuestions
from regard.training.data.labelled_text import Generator, stored_tokenizer
from regard.training.data.sound_sources import (
    SPECTROGRAM,
    WAVEFORM,
    LabelledRecordings,
)
from regard.training.data.source import Position
from regard.training.data.stored_items import ItemData
from regard.training.data.text_sources import LabelledData, LabelledSource, LabelledTexts
from regard.training.objectives.head_objective import HeadObjective, TextHead, has_classes
from regard.training.objectives.losses import LossSums, Tensors, cross_entropy, r_drop
from regard.training.objectives.speech import frames
from regard.training.setup import Setup
from regard.wirings.baselines.memory_network import MemoryNetwork


class Classification(HeadObjective):
    """One class per row, by cross-entropy; what the rows are is said by the source."""

    head_task: ClassVar[spec.HeadTask] = "classify"

    def head_loss(self, logits: Tensor, tensors: Tensors) -> LossSums:
        labels = tensors["labels"]
        loss, nll = self.class_loss(logits, labels, tensors)
        if "mixup" in tensors:
            weight = tensors["mixup"].mean()  # CutMix: the share of the pixels that are its own
            # Where ranks share the batch, the label before the first row is not among these.
            others = tensors.get(PREVIOUS + "labels", labels.roll(1, dims=0))
            other_loss, other_nll = self.class_loss(logits, others, tensors)
            loss = weight * loss + (1 - weight) * other_loss
            nll = weight * nll + (1 - weight) * other_nll
        return loss, nll


class AgainstMajority(Classification):
    """Classes that are scored next to always answering the most frequent one of training."""

    def final_score(self, split: str) -> Score:
        score = super().final_score(split)
        # Of the training split: a baseline may not look at the labels that it is scored by.
        most_frequent = Counter(example.label for example in self.data.train).most_common(1)[0][0]
        examples = self.data.sets[split]
        hits = sum(example.label == most_frequent for example in examples)
        majority = 100.0 * hits / max(1, len(examples))
        return Score(**vars(score), majority=majority)


class TextClassification(TextHead, AgainstMajority):
    """The class of a text or a pair of texts, from the pooled first token."""

    name = "classify"
    source_class = LabelledTexts
    head_fields = "heads=(Pool(), ClassifierHead(CLASSES))"


class MediaClassification(Classification):
    """Classes of images or recordings, by a new head where a model has none for them."""

    def outputs(self, split: str) -> tuple[OutputKind, Outputs]:
        def predict(tensors: Tensors) -> list[tuple[list[int], int]]:
            logits, _ = self.logits(tensors)
            ranked = logits.float().argsort(dim=-1, descending=True, stable=True)[:, :5]
            return list(zip(ranked.tolist(), tensors["labels"].tolist(), strict=True))

        rankings, labels = zip(*self.predictions(split, predict), strict=True)
        return "ranking", Outputs(rankings, labels)

    # A model with a head for so many classes.
    classifier: ClassVar[staticmethod[[Any, int], spec.Encoder]]

    @classmethod
    def adapt(cls, base: Any, data: Any, setup: Setup) -> Model:
        """The same stack with the classes of the data: its own head if they are the same."""
        names = cls.source_class.class_names(data)
        if cls.has_head(base.spec) and has_classes(base, names):
            return base  # type: ignore[no-any-return]
        return cls.rebuilt(base, cls.classifier(base.spec, len(names)), data, setup)


def without_masks(description: spec.Encoder) -> spec.Encoder:
    """The encoder of masked image modelling, which sees all patches from now on.

    That of a masked autoencoder becomes a plain ViT, whose positions are trained with the rest (He
    et al. 2022, Appendix A.1).
    """
    patches = replace(description.patches, masked_share=0.0, mask_token=False, mask_unit=1)
    if isinstance(description.pixels, spec.PixelDecoder) and patches.position == "fixed":
        dropout = description.stack.block.dropout
        patches = replace(patches, position="learned", dropout=dropout)
    pooled = spec.heads(description.pool, description.labels)
    return replace(description, input=patches, heads=pooled)


def _without_segments(description: spec.Encoder) -> spec.Encoder:
    stack = description.stack
    if isinstance(stack.scheme, spec.Pyramid):
        stack = replace(stack, scheme=replace(stack.scheme, fused=None))
    return replace(description, stack=stack, heads=spec.heads(description.pool))


def image_classifier(description: Any, count: int) -> spec.Encoder:
    """An encoder of images with so many classes, by a head as it has one, or by a new one."""
    if description.pixels is not None or description.input.mask_token:
        description = without_masks(description)
    if description.task == "segment":  # scores of pixels say nothing of the image
        description = _without_segments(description)
    if description.labels is not None:
        return description.with_head(replace(description.labels, count=count))
    if description.pool is not None and description.pool.which == "mean":  # Swin
        return description.with_head(spec.ClassifierHead(count))
    if not description.input.extras:  # SigLIP has no class token
        return description.with_heads(description.pool, spec.ClassifierHead(count, pool="mean"))
    # The class token as ViT's classifier reads it; CLIP's has a norm before it.
    norm = None if description.pool is None else description.pool.norm
    pool = spec.Pool("first", None, norm=norm)
    return description.with_heads(pool, spec.ClassifierHead(count))


class ImageClassification(MediaClassification):
    """The class of an image, from its class token (ViT); of DeiT, from the mean of both heads."""

    name = "images"
    unit = "images"
    source_class: ClassVar[type[Images]] = LabelledImages
    spec_classes = (spec.Encoder, spec.ConvolutionalEncoder)
    classifier = staticmethod(image_classifier)
    base_tasks = ("embed",)
    base_advice = "give an encoder of images, such as ViT"
    input_names = ("pixel_values",)
    head_fields = "heads=(Pool(), ClassifierHead(CLASSES))"

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        count = len(data.vocabulary)
        return cls.classifier(model_spec.describe(setup.recipe, count), count)


class ClipClassification(ImageClassification):
    """The class of a clip, from its class token (TimeSformer) or the mean of all tubelets."""

    name = "clips"
    unit = "clips"
    source_class = LabelledClips
    input_names = ("clips",)
    base_advice = "give an encoder of clips, such as TimeSformer or VideoMAE"


_POOLED_WIDTH = 256  # transformers' classifier_proj_size, unless the model is narrower


def sound_classifier(description: Any, count: int) -> spec.Encoder:
    """The encoder of a model of sound, with a head over the mean of its positions."""
    encoder: spec.Encoder = description
    if description.is_encoder_decoder:
        encoder = spec.Encoder(description.d_model, description.source, description.encoder)
    if encoder.main_input_name == "input_values" and encoder.contrastive is None:
        # Nothing is masked in training: a new mask vector would keep its initial value.
        masked = encoder.waves.masked and encoder.labels is None
        encoder = replace(encoder, input=replace(encoder.waves, masked=masked))
    pool = spec.Pool("mean", None, width=min(_POOLED_WIDTH, encoder.d_model), bias=True)
    return encoder.with_heads(pool, spec.ClassifierHead(count))


class SoundClassification(MediaClassification):
    """The class of a recording, from the mean of an encoder's positions (Wav2Vec2, Whisper).

    The recordings of a new model of spectrograms have a window as long as the longest, in whole
    seconds.
    """

    name = "sounds"
    unit = "recordings"
    source_class = LabelledRecordings
    classifier = staticmethod(sound_classifier)
    base_advice = "give an encoder of sound, such as Wav2Vec2 or Whisper"
    convertible_classes = (spec.EncoderDecoder,)
    input_names = (WAVEFORM, SPECTROGRAM)
    head_fields = "heads=(Pool('mean', None), ClassifierHead(CLASSES))"

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Encoder:
        recipe = setup.recipe
        changes = {}
        if recipe.model.spec is None and presets.about(recipe.preset_name).kind == "speech":
            changes["frames"] = frames(data)
        description: Any = model_spec.describe(recipe, len(data.vocabulary), **changes)
        return cls.classifier(description, len(data.vocabulary))


# --- graphs ---------------------------------------------------------------------------------------


class GraphObjective(Classification):
    """Base of both: the class of what has labels, from its hidden state or the graph's mean.

    Nodes are learnt transductively (GAT, Veličković et al. 2018): each step reads the whole graph,
    and the loss counts the labelled nodes of the training split.
    """

    base_tasks = ("classify",)
    describes_head = False
    base_advice = "give a model of graphs"
    input_names = ("node_features",)
    source_class: ClassVar[type[GraphSource]]
    source: GraphSource
    trained_model: GraphModel

    @classmethod
    def check_base(cls, base: Any, setup: Setup) -> None:
        super().check_base(base, setup)
        level = cls.source_class.level
        if base.level != level:
            raise ModelError(
                f"{base.folder} classifies {base.level}, and the task is of {level}",
                f"say {base.level} instead",
            )

    @classmethod
    def describe(cls, setup: Setup, data: GraphData) -> spec.Model:
        count = len(cls.source_class.class_names(data))
        features = data.features.shape[1]
        return model_spec.describe(setup.recipe, count, features=features, task=cls.head_task)

    @classmethod
    def adapt(cls, base: Any, data: GraphData, setup: Setup) -> Model:
        """The same model, whose classes are those of the data."""
        unknown = sorted(set(cls.source_class.class_names(data)) - set(base.labels))
        if unknown:
            raise DataError(
                f"the model has no class {unknown[0]!r}; it knows {', '.join(base.labels)}",
                "give labels of these, or train a new model: regard train --graph FOLDER",
            )
        return base

    def logits(self, tensors: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        return self.trained_model.graph_logits(dict(tensors)), {}

    def head_loss(self, logits: Tensor, tensors: Tensors) -> LossSums:
        loss, nll = super().head_loss(logits, tensors)
        weight = self.settings.r_drop
        if not weight or not self.model.training:
            return loss, nll
        # Two passes with other dropout should agree, on what has no label too: nodes without one
        # say more about the graph than the few that have it (GRAND, Feng et al. 2020).
        other, _ = self.logits(tensors)
        other_loss, _ = super().head_loss(other, tensors)
        everything = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        # The step divides by the labelled nodes: so the mean over all nodes counts once.
        labels = tensors["labels"]
        share = (labels != IGNORED).sum() / len(labels)
        agreement = r_drop(logits, other, everything) * share
        return (loss + other_loss) / 2 + weight * agreement, nll

    # --- evaluation: all graphs are read at once, whatever the split ------------------------------

    def likelihood(self, split: str) -> dict[str, Any]:
        return {}  # of the same logits as the score

    def score(self, split: str) -> Score:
        rows = self.source.splits[split]
        labels = self.source.labels[rows]
        with self.autocast:
            logits = self.trained_model.logits(self.data)[rows]
        _, nll = cross_entropy(logits, labels)
        count = max(1, int((labels != IGNORED).sum()))
        score = scored(self.name, logits.argmax(dim=-1).tolist(), labels.tolist())
        return Score(loss=nll.item() / count, **vars(score))


class NodeClassification(GraphObjective):
    """The classes of nodes, of which few are labelled; all nodes are read in each step."""

    name = "nodes"
    unit = "nodes"
    source_class = Nodes
    source: Nodes
    head_task = "tag"
    head_fields = "heads=(ClassifierHead(CLASSES, 'tag'),)"

    def batches_per_epoch(self) -> int:
        return 1

    def batches(self, epoch: int, index: int) -> Iterator[tuple[Position, Batch]]:
        while True:
            epoch += 1
            # An epoch is one step: Veličković et al. 2018 count full-graph updates in epochs.
            yield (epoch, 0), self.source.whole_graph


class GraphClassification(GraphObjective):
    """The classes of whole graphs, from the mean of their nodes (Graphormer, Ying et al. 2021)."""

    name = "graphs"
    unit = "graphs"
    source_class = Graphs
    head_fields = "heads=(Pool('mean', None), ClassifierHead(CLASSES))"
    cuda_graphs = False  # batches differ in their number of edges


# --- stories --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoryRow:
    """Token ids of a story's sentences, the question last, and of its answer."""

    sentences: list[list[int]]
    answer: int


class Stories(LabelledSource):
    """Stories with a question and its answer, in batches of similar lengths."""

    unit = "stories"
    model_class = MemoryNetworkModel
    read = staticmethod(labelled.labelled_texts)
    model: MemoryNetworkModel

    @classmethod
    def generator(cls, setup: Setup) -> Generator:
        return babi_stories.stories

    @classmethod
    def texts(cls, example: LabelledText) -> list[str]:
        return [*split_sentences(example.text), example.label]

    @classmethod
    def new_tokenizer(cls, setup: Setup, texts: Callable[[], Iterable[str]]) -> Tokenizer:
        # Words, since answers are single words; no [CLS], since a sentence is a bag of words.
        return stored_tokenizer(setup, "words", lambda _: word_level_json(texts(), cls_token=False))

    def rows(self, examples: Sequence[LabelledText]) -> list[StoryRow]:
        # An answer is one word, which is one token.
        answers = self.model.tokenizer.encode_with_template([example.label for example in examples])
        return [
            StoryRow(self.model.sentence_ids(example.text), answer.ids[0])
            for example, answer in zip(examples, answers, strict=True)
        ]

    def lengths(self, split: str) -> NDArray[Any]:
        # Sentences of a story are rows of one tensor, all padded to the longest: its area is what
        # it costs.
        stories = [row.sentences for row in self.splits[split]]
        return np.array([[len(story) * max(map(len, story))] for story in stories])

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        """`text` [B, N + 1, S], the question last, and `labels` [B]."""
        selected = [self.splits[split][i] for i in rows]
        # Sentences and stories are padded with −1.
        text = pad_stories([row.sentences for row in selected], self.setup.pad_to_multiple_of)
        labels = torch.tensor([row.answer for row in selected])
        return Batch({"text": text, "labels": labels}, len(selected), np.asarray(rows))

    def statistics(self) -> InputStatistics:
        rows = self.splits["train"]
        stories = ([id for ids in row.sentences for id in ids] for row in rows)
        return row_statistics(stories, self.data.tokenizer)


class StoryQuestions(AgainstMajority):
    """The answer is a class of the whole vocabulary (Sukhbaatar et al. 2015, Section 2.1)."""

    name = "stories"
    unit = "stories"
    source_class = Stories
    spec_classes = (spec.MemoryNetwork,)
    input_names = ("story",)
    describes_head = False

    @classmethod
    def has_head(cls, description: Any) -> bool:
        return True

    @classmethod
    def head_config(cls, data: LabelledData) -> dict[str, Any]:
        return {}

    @classmethod
    def describe(cls, setup: Setup, data: LabelledData) -> spec.Model:
        return model_spec.describe(setup.recipe, len(data.tokenizer))

    def logits(self, tensors: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        """Of the answer, [B, V], and the auxiliary losses."""
        return answer_logits(self.trained_model.model, tensors["text"])


def answer_logits(model: Any, text: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of the answers to stories [B, N + 1, S], whose last sentence is the question."""
    hidden, auxiliary = model(*MemoryNetwork.split_inputs(text))
    return model.head(hidden), auxiliary


# --- questions about images -----------------------------------------------------------------------


class VisualQuestions(MediaClassification):
    """The answer to a question about an image is a class (ViLT, Kim et al. 2021)."""

    name = "vqa"
    unit = "questions"
    source_class = ImageQuestions
    source: ImageQuestions
    base_tasks = ("answer",)
    base_advice = "give an encoder of texts and images, such as ViLT"
    input_names = ("input_ids pixel_values",)
    head_fields = "heads=(Pool(), ClassifierHead(CLASSES))"

    @staticmethod
    def classifier(description: Any, count: int) -> spec.Encoder:
        return description.with_heads(spec.Pool(), vilt.head(count, description.d_model))  # type: ignore[no-any-return]

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        description = model_spec.describe(setup.recipe, len(data.vocabulary.tokenizer))
        return cls.classifier(description, len(data.vocabulary.names))

    def final_score(self, split: str) -> Score:
        """Next to the most frequent answer of training."""
        ids = self.source.class_ids
        most_frequent = Counter(ids["train"]).most_common(1)[0][0]
        majority = 100.0 * ids[split].count(most_frequent) / len(ids[split])
        return Score(**vars(super().final_score(split)), majority=majority)
