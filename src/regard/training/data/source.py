"""A source of examples: one kind of data, from what a recipe names to the batches of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import (
    Batch,
    BatchSampler,
    BlockSampler,
    Rows,
    batch_indices,
    corpus_sampler,
)
from regard.data.corpus import Corpus
from regard.data.text.tokenizer import Role, Tokenizer
from regard.data.training_coverage import InputStatistics
from regard.families.folder import SpecialTokenIds
from regard.models import Model, Translator
from regard.training.setup import Setup

Position = tuple[int, int]  # the epoch, and the number of a batch in it


class ModelInputs(NamedTuple):
    """What an encoder reads: its main input, the mask of its padding, and whatever else."""

    inputs: Tensor
    padding_mask: Tensor | None = None
    more: Mapping[str, Tensor] = {}


class Source(ABC):
    """A source: it reads, stores, batches, augments and shows one kind of data, and knows no task.

    Its class methods prepare the data of a run; an instance makes batches of it for a model.
    Everything drawn at random follows from the seed, the position of a batch and its rows.
    """

    unit: ClassVar[str] = "examples"  # what a row is
    rounds_lengths: ClassVar[bool] = False  # whether they are tokens, padded to a multiple
    # A validation batch has no gradients and may be this much larger than a training batch.
    evaluation_factor: ClassVar[int] = 4
    model_class: ClassVar[Callable[..., Model]]  # of models that read it, as users hold them
    corpus: Corpus | None = None  # of the training rows, where they are one

    def __init__(self, model: Any, data: Any, setup: Setup) -> None:
        self.model = model  # with its tokenizer or processor, as users hold it
        self.data = data
        self.setup = setup
        self.settings = setup.recipe.train
        self.splits: dict[str, Any] = {}  # rows by split: train, perhaps valid, and others

    @cached_property
    def label_ids(self) -> dict[str, int]:
        """The ids of the classes of the model, by their names."""
        return {name: i for i, name in enumerate(self.model.require_labels())}

    # --- preparing a run --------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def prepare(cls, setup: Setup, base: Model | None) -> Any:
        """The data of a run, stored in its folder on the first call.

        A model that is fine-tuned, `base`, brings its tokenizer or processor.
        """

    @classmethod
    def class_names(cls, data: Any) -> Sequence[str]:
        """The names of the classes that training knows."""
        names: Sequence[str] = data.labels
        return names

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: Any) -> Model:
        """A core model as users hold it, with the tokenizer of the data if that is text."""
        tokenizer = getattr(data, "tokenizer", None)
        parts = (model, description) if tokenizer is None else (model, description, tokenizer)
        return cls.model_class(*parts, config)

    @classmethod
    def special_token_ids(cls, data: Any) -> SpecialTokenIds | None:
        """The tokens by which a decoder starts and ends, where there is one."""
        return None

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        """What makes the folder of a new model a Hugging Face repository, besides weights."""
        return {"config.json": model.config}

    # --- batches ----------------------------------------------------------------------------------

    @abstractmethod
    def lengths(self, split: str) -> NDArray[Any]:
        """[rows, columns]: the positions that each row takes in a batch."""

    def corpus_lengths(self, rows: Rows) -> NDArray[Any]:
        """The same of some rows of the corpus."""
        assert self.corpus is not None, "asked for where there is one"
        return self.corpus.row_lengths(rows)

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        """The tensors of some rows: inputs, and labels where the data has them.

        Those of `train` are augmented.
        """
        raise NotImplementedError("the objective corrupts or cuts the rows itself")

    def model_inputs(self, tensors: Mapping[str, Tensor]) -> ModelInputs:
        """What an encoder reads of a batch, on the device."""
        raise NotImplementedError

    def sampler(self) -> BatchSampler | BlockSampler:
        """The order of the training rows."""
        budget = self.settings.batch_tokens
        seed = self.settings.seed
        multiple = self.setup.pad_to_multiple_of if self.rounds_lengths else 1
        if self.corpus is None:
            return BatchSampler(self.lengths("train"), budget, seed=seed, multiple=multiple)
        return corpus_sampler(
            self.corpus, budget, seed=seed, multiple=multiple, lengths=self.corpus_lengths
        )

    @property
    def max_evaluation_rows(self) -> int | None:
        """How many rows a validation batch may have; None for any number."""
        return None

    def evaluation_rows(self, split: str) -> list[Rows]:
        """Each row of a split once, in the same batches every time."""
        return batch_indices(
            self.lengths(split),
            self.evaluation_factor * self.settings.batch_tokens,
            seed=0,
            epoch=0,
            shuffle=False,
            max_rows=self.max_evaluation_rows,
        )

    def describe(self) -> str:
        """How much there is of the data, in words."""
        count = len(self.splits["train"])
        validation = len(self.splits.get("valid", ()))
        return f"data: {count:,} {self.unit} to train on, {validation:,} to validate"

    @abstractmethod
    def example(self, row: int) -> dict[str, Any]:
        """A training row as text, for a report about it."""

    def statistics(self) -> InputStatistics | None:
        """Token statistics of the training texts; None without text."""
        return None


def text_model_files(model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
    """config.json, and how its text is tokenized and generated."""
    tokenizer = model.input_tokenizer
    generation_keys = special_token_ids(tokenizer).keys()
    return {
        "config.json": model.config,
        "generation_config.json": {
            key: value for key, value in model.config.items() if key in generation_keys
        },
        "tokenizer_config.json": {
            **tokenizer.config,
            "model_max_length": setup.recipe.data.context,
        },
    }


def decoder_token_ids(
    tokenizer: Tokenizer, start: Role = "bos", forced_bos: int | None = None
) -> SpecialTokenIds:
    """The special tokens of a decoder, which begins with that of the role `start`."""
    pad, first, end = (tokenizer.required_token_id(role) for role in ("pad", start, "eos"))
    return SpecialTokenIds(pad, first, end, tokenizer.special_token_id("unk"), forced_bos)


def new_translator(
    model: Any,
    description: Any,
    config: dict[str, Any],
    tokenizers: tuple[Tokenizer, Tokenizer],
    ids: SpecialTokenIds,
) -> Translator:
    """A core model with its tokenizers of sources and targets, which must fit."""
    source, target = tokenizers
    return Translator(
        model, description, source, target, ids.start, config, forced_bos=ids.forced_bos
    )


def special_token_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    # Written even if None: transformers would otherwise take GPT-2's ids, which small vocabularies
    # do not have.
    roles: tuple[Role, ...] = ("pad", "bos", "eos")
    return {f"{role}_token_id": tokenizer.special_token_id(role) for role in roles}
