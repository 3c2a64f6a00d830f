"""The workload of a training step: a batch of given sizes, and the loss of an objective on it.

The losses are the functions of `training/objectives`, without data, tokenizers and teachers: a
batch is a table of shapes, filled with random numbers. Batches have no padding.
"""

# Letters of shapes: B rows, S source and T target positions, D d_model, V vocabulary.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard import spec as specs
from regard.builder import build, outline
from regard.builder.heads import build_forecast_loss
from regard.core.caches.kv_cache import DecoderState
from regard.core.context import Context
from regard.core.frontends.lagged_values import Covariates
from regard.core.frontends.trajectories import TOKENS
from regard.core.heads.contrastive_head import GUMBEL_TEMPERATURE
from regard.core.heads.series_head import ForecastLoss
from regard.core.stack import Stack
from regard.data.padding import IGNORED
from regard.models.image_encoder import enlarged, position_logits
from regard.models.sentence_transformers import SentencePooling
from regard.system.errors import ModelError
from regard.training.objectives.acting import action_loss
from regard.training.objectives.causal_lm import next_token_loss
from regard.training.objectives.classification import answer_logits
from regard.training.objectives.contrastive import image_text_loss, pair_loss, pair_vectors
from regard.training.objectives.corrupted_text import CorruptedText, masked_loss
from regard.training.objectives.forecasting import forecast_errors
from regard.training.objectives.head_objective import answer_loss, label_logits, squared_error
from regard.training.objectives.losses import (
    LossTerms,
    TokenLoss,
    cross_entropy,
    linear_cross_entropy,
)
from regard.training.objectives.masked_images import reconstruction_loss
from regard.training.objectives.replaced_token_detection import replaced_loss, share_embeddings
from regard.training.objectives.sequence_to_sequence import teacher_forced_loss
from regard.training.objectives.speaking import spoken_loss
from regard.training.objectives.speech import NEGATIVES, alignment_loss, contrastive_loss

Tensors = Mapping[str, Tensor]
# The modules that are trained and the tensors of a batch → the loss.
Loss = Callable[[Any, Tensors, TokenLoss], LossTerms]
HeadLoss = Callable[[Tensor, Tensors], tuple[Tensor, Tensor]]

STORY_SENTENCES = 20  # of a bAbI story, and the words of each
STORY_WORDS = 8
NEIGHBOURS = 4  # of a node: Cora's papers have 3.9
GRAPH_STRUCTURE = ("edges", "eigenvectors", "distances")
MASKED_SPEECH = 0.49  # of the positions: spans overlap (Baevski et al. 2020, Section 4.2)
CTC_LABELS_PER_SECOND = 14  # characters of English speech
FRAMES_PER_LETTER = 7  # the same, in frames of 10 ms
SAMPLES_PER_SECOND = 16_000


@dataclass(frozen=True)
class Sizes:
    """The sizes of a batch: rows, and positions of each row; encoder–decoders have two lengths."""

    rows: int
    length: int
    source_length: int

    @property
    def positions(self) -> int:
        return self.rows * self.length


@dataclass(frozen=True)
class StepSettings:
    """How a step is run: what changes its memory and its operations besides the batch."""

    precision: str = "float32"
    accumulate: int = 1  # micro-batches of an update
    recompute: bool = False  # activation checkpointing
    accelerator: bool = False  # whether its kernels are those of a GPU


@dataclass(frozen=True)
class Input:
    """A tensor of a batch: floating-point numbers, or integers below `limit`."""

    shape: tuple[int, ...]
    limit: int | None = None  # None: floating-point numbers
    is_mask: bool = False
    share: float = 1.0  # of the positions that have a label, or that a mask selects
    content: Tensor | None = None  # where values decide what is computed: the edges of a graph

    @property
    def count(self) -> int:
        """How many labels it has."""
        return max(1, round(self.share * math.prod(self.shape)))

    @property
    def is_real(self) -> bool:
        """Whether a trace needs its values; pixels and sound are larger, and have shapes only."""
        return self.limit is not None or self.is_mask or self.content is not None

    def create(self, device: torch.device, generator: torch.Generator) -> Tensor:
        if self.content is not None:
            return self.content.to(device)
        if not self.is_real:
            return torch.randn(self.shape, generator=generator).to(device)
        values = torch.ones(self.shape, dtype=torch.bool)
        if self.limit is not None:
            values = torch.randint(0, self.limit, self.shape, generator=generator)
        if self.share < 1:
            left_out = torch.randperm(values.numel(), generator=generator)[self.count :]
            values.view(-1)[left_out] = False if self.is_mask else IGNORED
        return values.to(device)


@dataclass(frozen=True)
class Workload:
    """A micro-batch of an objective: its inputs, and how its loss is computed."""

    objective: str
    sizes: Sizes
    inputs: Mapping[str, Input]
    labels: int  # that the loss is a mean over
    _loss: Loss

    def loss(
        self, core: nn.Module, tensors: Tensors, token_loss: TokenLoss = linear_cross_entropy
    ) -> Tensor:
        """The loss of a batch, summed over its labels."""
        return self._loss(core, tensors, token_loss).total()

    def create(self, device: torch.device, seed: int = 0) -> dict[str, Tensor]:
        """Random tensors of these shapes."""
        generator = torch.Generator().manual_seed(seed)
        return {name: one.create(device, generator) for name, one in self.inputs.items()}


# --- the modules that are trained -----------------------------------------------------------------


def modules(description: specs.Model, generator: specs.Model | None, *, real: bool) -> nn.Module:
    """What an objective trains: the model, with its generator in ELECTRA's objective.

    Unless `real`, on the meta device: shapes without memory.
    """
    make = build if real else outline
    core: nn.Module = make(description)
    if generator is None:
        return core
    other = make(generator)
    share_embeddings(other, core)  # type: ignore[arg-type]
    return nn.ModuleDict({"generator": other, "discriminator": core})


def set_activation_checkpointing(model: nn.Module, value: bool) -> None:
    """Recomputes the activations of each block in backward (Chen et al. 2016)."""
    for module in model.modules():
        if isinstance(module, Stack):
            module.activation_checkpointing = value


# --- losses: those of training, of a model and tensors --------------------------------------------


def _teacher_forced(core: Any, tensors: Tensors, token_loss: TokenLoss) -> LossTerms:
    return teacher_forced_loss(core, tensors["source"], tensors, token_loss)


def _causal(core: Any, tensors: Tensors, token_loss: TokenLoss, d_model: int) -> LossTerms:
    context = None
    if core.stack.carries_state:  # Transformer-XL and recurrent models read segments
        states = core.stack.start_segments(len(tensors["tokens"]), d_model)
        context = Context(state=DecoderState(states))
    return next_token_loss(core, tensors, context, token_loss)


def _replaced(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    return replaced_loss(core, tensors)


def _classes(logits: Tensor, tensors: Tensors) -> tuple[Tensor, Tensor]:
    return cross_entropy(logits, tensors["labels"])


def _labelled(
    core: Any, tensors: Tensors, _unused: TokenLoss, loss: HeadLoss = _classes
) -> LossTerms:
    inputs = tensors["inputs"]
    more = {name: tensors[name] for name in (*GRAPH_STRUCTURE, "pixels") if name in tensors}
    more |= _side_tokens(core, inputs)
    logits, auxiliary = label_logits(core, inputs, tensors.get("padding_mask"), more)
    return LossTerms(*loss(logits, tensors), auxiliary, tensors["labels"].numel())


def _segmented(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    pixels = tensors["inputs"]
    maps, auxiliary = position_logits(core, pixels)
    logits = enlarged(maps, pixels.shape[-2:])
    loss = _classes(logits.permute(0, 2, 3, 1), tensors)
    return LossTerms(*loss, auxiliary, tensors["labels"].numel())


def _side_tokens(core: Any, tokens: Tensor) -> dict[str, Tensor]:
    """A decoder behind an encoder reads the same text."""
    return {"target": tokens} if len(core.stacks()) == 2 else {}


def _vectors(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    first, second = pair_vectors(core, SentencePooling(), tensors, partial(_side_tokens, core))
    return _alone(pair_loss(first, second))


def _masked_patches(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    order = core.input.random_masking(tensors["noise"])
    return reconstruction_loss(core, tensors["pixels"], order)


def _outputs_norm(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    """Where no objective is known: the squared norm of the outputs stands for a loss."""
    outputs = core.head_output(core.hidden_states(tensors, Context()), tensors)
    return _alone(outputs.float().square().sum())


def _said(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    """The same of a model that decides by itself how long its tokens last: as long as usual."""
    tokens = tensors["input_ids"]
    mask = tensors["attention_mask"].bool()
    frames = FRAMES_PER_LETTER * tokens.shape[1]
    latents = core.utter(tokens, mask, Context(), {}, frames=frames)
    outputs = core.head_output(latents.hidden, tensors)
    return _alone(outputs.float().square().sum())


def _image_text(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    return _alone(image_text_loss(core, tensors, tensors["pixels"]))


def _alone(loss: Tensor) -> LossTerms:
    return LossTerms(loss, loss.detach(), {}, 1)


def _ctc(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    rows, characters = tensors["labels"].shape
    lengths = torch.full((rows,), characters, device=tensors["labels"].device)
    labels = tensors["labels"] + 1  # 0 is the blank
    return alignment_loss(core, {**tensors, "labels": labels, "label_lengths": lengths}, blank=0)


def _spoken(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    return spoken_loss(core, tensors)


def _acted(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    return action_loss(core, tensors)


def _masked_speech(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    return LossTerms(*contrastive_loss(core, tensors), {}, 1)


def _forecast(core: Any, tensors: Tensors, _unused: TokenLoss, loss: ForecastLoss) -> LossTerms:
    covariates = Covariates(past=tensors.get("past_time"), future=tensors.get("future_time"))
    return forecast_errors(core, loss, tensors, covariates)


def _stories(core: Any, tensors: Tensors, _unused: TokenLoss) -> LossTerms:
    logits, auxiliary = answer_logits(core, tensors["text"])
    return LossTerms(*_classes(logits, tensors), auxiliary, len(tensors["labels"]))


# --- batches --------------------------------------------------------------------------------------


Made = tuple[dict[str, Input], int, Loss]


def workload(objective: str, model: Any, sizes: Sizes) -> Workload:
    """A batch of these sizes for this model and objective."""
    make = _BATCHES.get(objective, _outputs)
    if make is _labelled_rows and model.labels is None:
        make = _outputs
    return Workload(objective, sizes, *make(model, sizes))


def _outputs(model: Any, sizes: Sizes) -> Made:
    """What a model reads, under the names of its call."""
    length = sizes.length
    inputs = {
        part.main_input_name: Input(part.shape(sizes.rows, length))
        for part in model.front_ends.values()
    }
    for name, vocabulary in model.vocabularies.items():
        inputs[name] = Input((sizes.rows, length), vocabulary)
    if model.main_input_name == "spectrogram":  # no front end: a vocoder's head reads it
        inputs["spectrogram"] = Input((sizes.rows, length, model.widths[""]))
    for one in model.inputs:
        owners = [inputs[name] for name in one.shaped_as if name in inputs]
        if one.kind == "mask" and owners:
            inputs[one.name] = Input(owners[0].shape[:2], is_mask=True)
    speaks = model.main_input_name == "input_ids" and model.part(specs.HifiGan) is not None
    return inputs, sizes.rows, _said if speaks else _outputs_norm


def _first(model: Any, sizes: Sizes, name: str) -> dict[str, Input]:
    """The first input of a model, under the name that a loss has for it, and its padding mask."""
    first = model.inputs[0]
    part = next(iter(model.front_ends.values()))
    shape = part.shape(sizes.rows, sizes.source_length)
    inputs = {name: Input(shape, model.vocabularies.get(first.name))}
    if first.kind in ("tokens", "samples"):
        inputs["padding_mask"] = Input(shape, is_mask=True)
    return inputs


def _pairs(model: Any, sizes: Sizes) -> Made:
    target = Input((sizes.rows, sizes.length), model.vocab_size)
    inputs = _first(model, sizes, "source") | {"target": target, "labels": target}
    return inputs, sizes.positions, _teacher_forced


def _text(model: Any, sizes: Sizes) -> Made:
    tokens = Input((sizes.rows, sizes.length), model.vocab_size)
    loss = partial(_causal, d_model=model.d_model)
    return {"tokens": tokens, "labels": tokens}, sizes.positions, loss


def _masked_text(model: Any, sizes: Sizes, loss: Loss = masked_loss) -> Made:
    inputs = _first(model, sizes, "tokens")
    labels = replace(inputs["tokens"], share=CorruptedText.default_share)
    return inputs | {"labels": labels}, labels.count, loss


def _labelled_rows(model: Any, sizes: Sizes) -> Made:
    """Texts, images, recordings or graphs with a label, or with one at each position."""
    inputs = _first(model, sizes, "inputs")
    shape = (sizes.rows, sizes.length) if model.labels.each else (sizes.rows,)
    labels = Input(shape, model.labels.count)
    if model.inputs[0].kind == "nodes":
        inputs |= _graph(model, sizes)
    if model.reads == "input_ids pixel_values":
        inputs["pixels"] = Input(model.patches.shape(sizes.rows, sizes.length))
    return inputs | {"labels": labels}, labels.count, _labelled


def _masks(model: Any, sizes: Sizes) -> Made:
    inputs = _first(model, sizes, "inputs")
    labels = Input((inputs["inputs"].shape[0], *inputs["inputs"].shape[2:]), model.labels.count)
    return inputs | {"labels": labels}, labels.count, _segmented


def _answers(model: Any, sizes: Sizes) -> Made:
    labels = Input((sizes.rows, 2), sizes.length)  # the first and the last token
    inputs = _first(model, sizes, "inputs") | {"labels": labels}
    return inputs, sizes.rows, partial(_labelled, loss=answer_loss)


def _ratings(model: Any, sizes: Sizes) -> Made:
    labels = Input((sizes.rows, model.labels.count))
    inputs = _first(model, sizes, "inputs") | {"labels": labels}
    return inputs, sizes.rows, partial(_labelled, loss=squared_error)


def _text_pairs(model: Any, sizes: Sizes) -> Made:
    shape = (sizes.rows, 2, sizes.length)
    inputs = {"tokens": Input(shape, model.vocab_size), "padding_mask": Input(shape, is_mask=True)}
    return inputs, sizes.rows, _vectors


def _masked_images(model: Any, sizes: Sizes) -> Made:
    noise = Input((sizes.rows, model.patches.maskable))
    return _first(model, sizes, "pixels") | {"noise": noise}, sizes.rows, _masked_patches


def _captioned_images(model: Any, sizes: Sizes) -> Made:
    pixels = Input(model.image.patches.shape(sizes.rows, sizes.length))
    return _first(model, sizes, "tokens") | {"pixels": pixels}, sizes.rows, _image_text


def _recordings(model: Any, sizes: Sizes) -> Made:
    if model.labels.count < 2:
        raise ModelError(
            "a CTC head with one class has only the blank",
            "set a larger `count` in its ClassifierHead",
        )
    characters = max(1, CTC_LABELS_PER_SECOND * sizes.length // SAMPLES_PER_SECOND)
    labels = Input((sizes.rows, characters), model.labels.count - 1)
    return _first(model, sizes, "waves") | {"labels": labels}, labels.count, _ctc


def _masked_recordings(model: Any, sizes: Sizes) -> Made:
    positions = (sizes.rows, model.waves.positions(sizes.length))
    masked = Input(positions, is_mask=True, share=MASKED_SPEECH)
    inputs = _first(model, sizes, "waves") | {
        "masked": masked,
        # For each position as many others, of the flattened batch.
        "negatives": Input((*positions, NEGATIVES), math.prod(positions)),
        "temperature": Input((), content=torch.tensor(GUMBEL_TEMPERATURE)),
    }
    return inputs, masked.count, _masked_speech


def _windows(model: Any, sizes: Sizes) -> Made:
    window = model.series_window
    past = (sizes.rows, window.length, window.channels)
    future = (sizes.rows, window.horizon, window.channels)
    inputs = {"past": Input(past), "future": Input(future)}
    features = model.input.covariates if model.is_encoder_decoder else 0
    if features:
        inputs["past_time"] = Input((*past[:2], features))
        inputs["future_time"] = Input((*future[:2], features))
    loss = build_forecast_loss(window.output)
    return inputs, math.prod(future), partial(_forecast, loss=loss)


def _steps(model: Any, sizes: Sizes) -> Made:
    part = model.trajectories
    rows = (sizes.rows, max(1, sizes.length // TOKENS))
    inputs = {
        "states": Input((*rows, part.states)),
        "actions": Input((*rows, part.actions)),
        "returns_to_go": Input((*rows, 1)),
        "timesteps": Input(rows, part.steps),
        "is_step": Input(rows, is_mask=True),
    }
    if not model.part(specs.TrajectoryHead).bounded:  # logits of choices
        inputs["labels"] = Input(rows, part.actions)
    return inputs, math.prod(rows), _acted


def _graph(model: Any, sizes: Sizes) -> dict[str, Input]:
    """Graphs of so many nodes, each node with as many neighbours as a paper of Cora has."""
    nodes = (sizes.rows, sizes.length)
    inputs = {"edges": Input((), content=_edges(*nodes))}
    if model.nodes.laplacian:
        inputs["eigenvectors"] = Input((*nodes, model.nodes.laplacian))
    if isinstance(model.stack.block.position, specs.ShortestPathBias):
        inputs["distances"] = Input((*nodes, sizes.length), 4)
    return inputs


def _edges(rows: int, nodes: int) -> Tensor:
    """Each node of a row with itself and those after it, as [E, 3]: row, from, to."""
    row, node, step = torch.meshgrid(
        torch.arange(rows), torch.arange(nodes), torch.arange(NEIGHBOURS + 1), indexing="ij"
    )
    return torch.stack([row, node, (node + step) % nodes], dim=-1).flatten(0, 2)


def _story_rows(model: Any, sizes: Sizes) -> Made:
    sentences = min(STORY_SENTENCES, model.sentences)
    inputs = {
        "text": Input((sizes.rows, sentences + 1, STORY_WORDS), model.vocabulary),
        "labels": Input((sizes.rows,), model.vocabulary),
    }
    return inputs, sizes.rows, _stories


def _spoken_texts(model: Any, sizes: Sizes) -> Made:
    shape = (sizes.rows, sizes.length)
    frames = FRAMES_PER_LETTER * sizes.length
    inputs = _first(model, sizes, "tokens") | {
        "durations": Input(shape, content=torch.full(shape, FRAMES_PER_LETTER)),
        "pitch": Input(shape),
        "energy": Input(shape),
        "speakers": Input((sizes.rows,), model.voice.speakers or 1),
        "spectrogram": Input((sizes.rows, frames, model.spectrogram.mels)),
    }
    return inputs, sizes.rows * frames, _spoken


# How a batch of each objective is made; of any other, from what the model reads.
_BATCHES: dict[str, Callable[[Any, Sizes], Made]] = {
    **dict.fromkeys(("translate", "span", "denoise", "transcribe", "caption"), _pairs),
    **dict.fromkeys(
        ("classify", "tag", "images", "clips", "vqa", "sounds", "nodes", "graphs"), _labelled_rows
    ),
    **dict.fromkeys(("causal", "draw"), _text),
    "masked": _masked_text,
    "replaced": partial(_masked_text, loss=_replaced),
    "answer": _answers,
    "regress": _ratings,
    "contrastive": _text_pairs,
    "segment": _masks,
    **dict.fromkeys(("masked_images", "masked_clips"), _masked_images),
    "image_text": _captioned_images,
    "ctc": _recordings,
    "speak": _spoken_texts,
    "speech_contrastive": _masked_recordings,
    "forecast": _windows,
    "act": _steps,
    "stories": _story_rows,
}
