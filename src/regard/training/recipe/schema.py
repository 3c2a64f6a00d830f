"""A recipe: everything that decides a run, in one TOML file of commented sections.

Every key has a name of its own across the sections, so the flag `--batch-tokens` and the key `batch_tokens` are the same
thing. Flags stand over the recipe, the recipe over the defaults written here.
"""

from __future__ import annotations

import importlib.resources
import os
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from regard.errors import SettingError, did_you_mean
from regard.families.attention_options import parse_attention, parse_compressed_memory
from regard.families.recurrent import FAMILIES as BEFORE
from regard.training.recipe.options import (
    LengthPenaltyChoice,
    StartChoice,
    WeightsChoice,
    length_penalty,
    start,
    weights,
)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Section):
    """Where the text comes from. With no file named, the built-in parallel language is generated.

    Pairs are for translation; `text` is for all other objectives.
    """

    source: str | None = Field(
        None, description="training text, source side; one sentence a line (.gz too)"
    )
    target: str | None = Field(
        None, description="training text, target side, line by line its translation"
    )
    pairs: str | None = Field(
        None,
        description="instead of two files: one .tsv or .jsonl of pairs, or - for standard input",
    )
    valid_source: str | None = Field(None, description="validation text, source side")
    valid_target: str | None = Field(None, description="validation text, target side")
    valid_pairs: str | None = Field(
        None, description="instead of two files: one .tsv or .jsonl of pairs"
    )
    test_source: str | None = Field(None, description="scored once, after training")
    test_target: str | None = Field(None, description="scored once, after training")
    text: str | None = Field(
        None, description="for all objectives but translation: one text file (.gz too)"
    )
    valid_text: str | None = Field(
        None, description="validation text; without it the end of `text` is held out"
    )
    test_text: str | None = Field(
        None, description="classify, stories: scored once, after training"
    )
    test_lines: int | None = Field(
        None,
        ge=1,
        description="classify, stories: examples to validate and to test with, if generated",
    )
    held_out: float = Field(0.1, gt=0, lt=1, description="share of `text`, its end, that validates")
    context: int = Field(
        256, ge=8, description="tokens of text that are seen at once, the special ones included"
    )
    languages: str | None = Field(
        None, description="source-target, e.g. en-de: for the model card and JSON Lines"
    )
    builtin_lines: int = Field(
        60_000, ge=100, description="sentences of the built-in language to train on"
    )
    max_length: int = Field(
        256, ge=2, description="longer sentences (in tokens) are left out of training, and counted"
    )


class Tokens(_Section):
    """How text becomes tokens."""

    tokenizer: str = Field(
        "bpe",
        description="bpe, unigram, words or characters to learn one, or a tokenizer.json; "
        "for `text`, bpe (of bytes) and characters keep every character and space",
    )
    target_tokenizer: str | None = Field(
        None, description="a second tokenizer.json, for the target side"
    )
    vocabulary: int = Field(8000, ge=8, description="how many tokens to learn")
    joint: bool = Field(True, description="one vocabulary for both sides")


Kind = Literal[
    "transformer", "gpt", "palm", "rnn", "gru", "lstm", "bahdanau", "luong", "luong_feeding", "convs2s", "bytenet",
    "memory",
]  # fmt: skip
# What is trained by which objective; the others have one model each.
KINDS: dict[str, tuple[str, ...]] = {
    "translate": ("transformer", *BEFORE),
    "causal": ("gpt", "palm", "rnn", "gru", "lstm"),
    "stories": ("memory",),
}
# Settings of stacks of attention, which nothing that came before them has.
OF_STACKS = (
    "d_ff", "heads", "decoder_layers", "attention_dropout", "feedforward_dropout", "activation", "position", "attention",
    "decoder_attention", "residual",
)  # fmt: skip


class Model(_Section):
    """The architecture: a preset and what is changed in it."""

    model: Kind | None = Field(
        None,
        description="what is trained: transformer, or what came before it (rnn, gru, lstm, bahdanau, luong, luong_feeding, "
        "convs2s, bytenet); causal: gpt, palm, rnn, gru or lstm; stories: memory  [transformer; gpt]",
    )
    preset: str | None = Field(
        None,
        description="tiny, small, base or big; for texts, the sizes of gpt, palm, bert, t5, bart or electra  "
        "[small; tiny for texts]",
    )
    d_model: int | None = Field(None, ge=1)
    d_ff: int | None = Field(None, ge=1)
    heads: int | None = Field(None, ge=1)
    layers: int | None = Field(None, ge=1)
    decoder_layers: int | None = Field(None, ge=1, description="if other than layers")
    dropout: float | None = Field(None, ge=0, lt=1, description="on residuals and embeddings")
    attention_dropout: float | None = Field(None, ge=0, lt=1, description="on attention weights")
    feedforward_dropout: float | None = Field(
        None, ge=0, lt=1, description="inside the feed-forward"
    )
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] | None = None
    position: (
        Literal[
            "sinusoidal", "learned", "none", "concatenated", "relative", "buckets", "alibi", "rope"
        ]
        | None
    ) = Field(
        None,
        description="how places are told: added (sinusoidal unless said), concatenated, or inside attention",
    )
    attention: str | None = Field(
        None,
        description="how a side looks at itself: softmax (unless said), window:N, dilated:N:STEP, strided:N, blocks:N, "
        "longformer[:N], bigbird[:N], topk:N, linear, performer[:FEATURES], linformer[:RANK], reformer[:BUCKETS[:CHUNK]]",
    )
    decoder_attention: str | None = Field(
        None, description="that of the decoder, if other than attention"
    )
    memory: int | None = Field(
        None,
        ge=1,
        description="causal: places before each segment that layers remember (Transformer-XL)",
    )
    compressed: str | None = Field(
        None,
        description="with memory: PLACES:FACTOR[:mean|max|conv] for what leaves it, made FACTOR to one by a convolution "
        "unless said (Compressive Transformer)",
    )
    residual: Literal["post", "pre"] | None = Field(
        None, description="where the norm stands: post (the paper) or pre"
    )
    start: str | None = Field(
        None,
        description="first weights: xavier, normal:DEVIATION, or scaled:DEVIATION (GPT-2: the last map of each sublayer "
        "divided by √(2·layers)); xavier for translation, scaled:0.02 for causal, normal:0.02 for the others",
    )
    share: Literal["all", "target", "none"] | None = Field(
        None, description="which embeddings are one matrix"
    )
    vectors: str | None = Field(
        None, description="word vectors to start from (word2vec or GloVe text format)"
    )
    freeze_embeddings: bool = Field(False, description="leave the embeddings as they start")

    @field_validator("start")
    @classmethod
    def _start(cls, value: str | None) -> str | None:
        if value is not None:
            start(value)
        return value

    @field_validator("compressed")
    @classmethod
    def _compressed(cls, value: str | None) -> str | None:
        if value is not None:
            parse_compressed_memory(value)
        return value

    @field_validator("attention", "decoder_attention")
    @classmethod
    def _attention(cls, value: str | None) -> str | None:
        if value is not None:
            parse_attention(value)
        return value


Objective = Literal[
    "translate", "causal", "masked", "span", "denoise", "replaced", "classify", "stories"
]


GENERATED = ("classify", "stories")  # which learn from a file, or from examples of their own


class Train(_Section):
    """The optimisation."""

    objective: Objective = Field(
        "translate",
        description="what is learnt: a translation, the next token (causal, GPT), hidden tokens (masked, BERT), hidden "
        "spans (span, T5), the text from a damaged one (denoise, BART), which tokens were replaced (replaced, ELECTRA), "
        "the class of a text (classify; without --text, of ListOps expressions), the answer to a question "
        "about a story (stories; without --text, generated ones)",
    )
    next_sentence: bool = Field(
        False, description="masked: learn too whether the second part follows the first"
    )
    hidden: float | None = Field(
        None, gt=0, lt=1, description="share of the tokens that is hidden  [0.15; denoise 0.3]"
    )
    span_length: float = Field(
        3.0, ge=1, description="mean length of a hidden span (span, denoise)"
    )
    steps: int = Field(20_000, ge=1, description="updates")
    batch_tokens: int = Field(
        4096, ge=1, description="padded positions of one batch; for causal, rows × context"
    )
    accumulate: int = Field(1, ge=1, description="batches summed into one update")
    optimizer: Literal["adam", "adamw"] = "adam"
    schedule: Literal["paper", "cosine", "constant", "linear"] = "paper"
    learning_rate: float | None = Field(
        None, gt=0, description="peak; the paper's own if not given"
    )
    warmup: int = Field(4000, ge=1, description="steps until the peak")
    floor: float = Field(
        0.0, ge=0, lt=1, description="cosine: the last learning rate as a share of the peak"
    )
    betas: tuple[float, float] = (0.9, 0.98)
    adam_eps: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip: float = Field(0.0, ge=0, description="largest gradient norm; 0 leaves it alone")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="translation only")
    agreement: float = Field(
        0.0, ge=0, description="weight of R-Drop: two passes with other dropout should agree"
    )
    teacher: str | None = Field(
        None,
        description="folder of a finished model to learn from, with whose tokens the student reads and writes",
    )
    teaching: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of the teacher's distributions in the loss; the rest is of the labels  [0.5]",
    )
    temperature: float | None = Field(
        None, gt=0, description="softens the distributions of teacher and student alike  [2]"
    )
    teacher_translates: bool = Field(
        False,
        description="translation: learn from the teacher's translations of the training text, by beam search",
    )
    precision: Literal["float32", "tf32", "bf16", "fp16"] = "float32"
    multiple: int = Field(
        0, ge=0, description="lengths are rounded up to it; 0: 8 on a GPU (few shapes), 1 on a CPU"
    )
    compile: bool = Field(
        False, description="on a GPU: torch.compile of the blocks; a slow start, then faster steps"
    )
    recompute: bool = Field(
        False, description="activation checkpointing: less memory, a second forward"
    )
    weights: str = Field(
        "best", description="what is kept at the end: best, last, average:N or ema:DECAY"
    )
    validate_every: int = Field(500, ge=1)
    metric: Literal["loss", "bleu", "chrf", "exact_match", "accuracy", "f1"] = Field(
        "loss", description="what best and patience look at"
    )
    patience: int = Field(
        0,
        ge=0,
        description="validations without improvement before the run stops; 0 never stops it",
    )
    save_every: int = Field(500, ge=1)
    log_every: int = Field(10, ge=1)
    samples: int = Field(
        2, ge=0, description="validation sentences translated, or texts written, at each validation"
    )
    seed: int = Field(1, ge=0)
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    threads: int = Field(0, ge=0, description="CPU threads; 0 takes what the machine offers")
    tensorboard: bool = False

    @field_validator("teacher")
    @classmethod
    def _teacher(cls, value: str | None) -> str | None:
        return (
            None if value is None else str(Path(value).absolute())
        )  # a run is resumed from anywhere

    @field_validator("weights")
    @classmethod
    def _weights(cls, value: str) -> str:
        weights(value)
        return value


class Decode(_Section):
    """How translations are searched for in the final score."""

    beam: int = Field(4, ge=1)
    length_penalty: str = Field("gnmt:0.6", description="gnmt:ALPHA or power:ALPHA")
    tokenize: str = Field(
        "13a", description="sacreBLEU's tokenizer for the final score; none for tokenised text"
    )

    @field_validator("length_penalty")
    @classmethod
    def _penalty(cls, value: str) -> str:
        length_penalty(value)
        return value


TunedTask = Literal["classify", "tag", "answer", "translate", "summarize", "lm"]


class Tune(_Section):
    """What a finished model is trained further for. Only `regard finetune` writes this section; its steps are counted from
    the data."""

    task: TunedTask
    base: str = Field(description="the folder of the model to begin with")
    files: tuple[str, ...] = Field(min_length=1, description="training data")
    prefixes: tuple[str, ...] = Field(
        (), description="put before the source texts of each of the files"
    )
    valid: str | None = Field(
        None, description="validation data; without it a tenth of the training data is held out"
    )
    test: str | None = Field(None, description="scored once, after training")
    epochs: float = Field(3.0, gt=0, description="how often the data is seen")
    warm_up: float = Field(
        0.1, ge=0, lt=1, description="share of the steps until the peak of the learning rate"
    )
    freeze: int | None = Field(
        None, ge=0, description="leave the embeddings and this many of the lowest blocks alone"
    )
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="learning rate of a block as a share of the next higher one's"
    )
    lora: int = Field(
        0,
        ge=0,
        description="rank of low-rank changes, which train instead of the model; 0: all of it",
    )
    lora_alpha: float | None = Field(
        None, gt=0, description="their weight: they are scaled by alpha / rank  [2 · rank]"
    )
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    lora_in: str = Field(
        "qkv,q,kv", description="the linear maps they stand beside, by name, or all"
    )


_METRICS: dict[str, tuple[str, ...]] = {
    "stories": ("loss", "accuracy", "f1"),
    "classify": ("loss", "accuracy", "f1"), "tag": ("loss", "accuracy", "f1"), "answer": ("loss", "exact_match", "f1"),
    "translate": ("loss", "bleu", "chrf", "exact_match"), "summarize": ("loss", "bleu", "chrf", "exact_match"),
}  # fmt: skip


class Recipe(_Section):
    """The sections together."""

    data: Data = Data()
    tokens: Tokens = Tokens()
    model: Model = Model()
    train: Train = Train()
    decode: Decode = Decode()
    tune: Tune | None = None

    @model_validator(mode="after")
    def _fits_the_objective(self) -> Recipe:
        objective, data, train = self.train.objective, self.data, self.train
        task = self.tune.task if self.tune else objective
        metrics = _METRICS.get(task, ("loss",))
        if train.metric not in metrics:
            raise SettingError(
                f"{train.metric} is no score of {task}", f"choose: {', '.join(metrics)}"
            )
        self._fits_the_teacher(task)
        if self.tune:
            return self
        if objective == "translate" and data.text:
            raise SettingError(
                "a translation is learnt from pairs, not from one text", "say --objective causal"
            )
        if objective != "translate" and (
            data.source or data.pairs or not (data.text or objective in GENERATED)
        ):
            raise SettingError(
                f"the objective {objective!r} learns from one text", "give --text FILE"
            )
        for key, given, fits in (
            ("agreement", train.agreement > 0, objective == "translate"),
            (
                "memory",
                self.model.memory is not None,
                objective == "causal" and not self.came_before,
            ),
            ("next_sentence", train.next_sentence, objective == "masked"),
            (
                "hidden",
                train.hidden is not None,
                objective not in ("translate", "causal", *GENERATED),
            ),
            ("test_text", data.test_text is not None, objective in GENERATED),
        ):
            if given and not fits:
                raise SettingError(
                    f"{key} is no setting of the objective {objective!r}", "leave it out"
                )
        if self.model.compressed is not None and self.model.memory is None:
            raise SettingError(
                "only what leaves a memory can be compressed",
                "give a memory too, e.g. --memory 128",
            )
        kinds = KINDS.get(objective, ())
        if self.model.model is not None and self.model.model not in kinds:
            known = f"choose: {', '.join(kinds)}" if kinds else "leave it out"
            raise SettingError(
                f"model = {self.model.model!r} is not for the objective {objective!r}", known
            )
        if self.came_before:
            foreign = [key for key in OF_STACKS if getattr(self.model, key) is not None]
            foreign += ["recompute"] if train.recompute else []
            if foreign:
                raise SettingError(
                    f"{foreign[0]} is no setting of {self.model.model}", "leave it out"
                )
        return self

    def _fits_the_teacher(self, task: str) -> None:
        train, translates = self.train, task in ("translate", "summarize")
        if train.teacher is None:
            alone = [
                key
                for key in ("teaching", "temperature", "teacher_translates")
                if getattr(train, key) not in (None, False)
            ]
            if alone:
                raise SettingError(
                    f"{alone[0]} is a setting of learning from a teacher", "give --teacher DIR"
                )
            return
        carried = self.model.memory is not None or (self.came_before and not translates)
        if carried or not (
            translates or task in ("causal", "lm", *(("classify", "tag") if self.tune else ()))
        ):
            raise SettingError(
                "only translators, language models without a memory, and models fine-tuned to classify or tag have teachers",
                "leave --teacher out",
            )
        if train.teacher_translates and (self.tune or not translates):
            raise SettingError(
                "a teacher translates the text that a new translator learns from", "leave it out"
            )
        if train.agreement:
            raise SettingError(
                "R-Drop and a teacher are two extra losses", "leave --agreement or --teacher out"
            )
        if self.teaching == 0 and not train.teacher_translates:
            raise SettingError(
                "this teacher teaches nothing", "raise --teaching, or say --teacher-translates"
            )

    @property
    def teaching(self) -> float:
        """The share of the teacher's distributions in the loss."""
        given = self.train.teaching
        return 0.0 if self.train.teacher is None else 0.5 if given is None else given

    @property
    def temperature(self) -> float:
        return self.train.temperature or 2.0

    @property
    def came_before(self) -> bool:
        """Whether the model is recurrent or convolved."""
        return self.model.model in BEFORE

    @property
    def kept_weights(self) -> WeightsChoice:
        return weights(self.train.weights)

    @property
    def penalty(self) -> LengthPenaltyChoice:
        return length_penalty(self.decode.length_penalty)

    @property
    def preset(self) -> str:
        return self.model.preset or ("small" if self.train.objective == "translate" else "tiny")

    @property
    def first_weights(self) -> StartChoice:
        usual = {"translate": "xavier", "causal": "scaled:0.02", "stories": "xavier"}.get(
            self.train.objective, "normal:0.02"
        )
        return start(self.model.start or usual)

    @property
    def builtin(self) -> bool:
        return self.data.source is None and self.data.pairs is None


SECTIONS: dict[str, type[_Section]] = {
    "data": Data,
    "tokens": Tokens,
    "model": Model,
    "train": Train,
    "decode": Decode,
}
KEYS: dict[str, str] = {
    key: name for name, section in SECTIONS.items() for key in section.model_fields
}


def packaged() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = importlib.resources.files("regard") / "recipes"
    return {Path(str(f)).stem: Path(str(f)) for f in folder.iterdir() if f.name.endswith(".toml")}


def load(
    name: str | Path | None, changes: Mapping[str, Any], data_root: str | None = None
) -> Recipe:
    """A recipe by name or TOML file, with `changes` (plain keys, as flags have them) on top.

    File names in a recipe are relative to the data root: `data_root`, else $REGARD_DATA, else the recipe's folder.
    """
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    if name is not None:
        for section, entries in _read(name).items():
            if section not in SECTIONS or not isinstance(entries, dict):
                raise SettingError(
                    f"{name}: there is no section [{section}]", did_you_mean(section, SECTIONS)
                )
            values[section].update(entries)
        _locate(values, name, data_root)
    values["model"] = fitting(values["model"], changes.get("model"))
    for key, value in changes.items():
        if key not in KEYS:
            raise SettingError(f"there is no setting {key!r}", did_you_mean(key, KEYS))
        values[KEYS[key]][key] = value
    return parse(values)


def fitting(settings: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """What another model than the recipe's takes of its settings: where that is a stack of attention and this came before,
    the sizes that both have."""
    changed = model in BEFORE and settings.get("model") not in BEFORE
    return {key: value for key, value in settings.items() if not changed or key not in OF_STACKS}


def choose(
    recipe: str | Path | None, changes: Mapping[str, Any], data_root: str | None = None
) -> tuple[Recipe, str]:
    """What a user asked for, and a name for it: a recipe; their own files with the defaults; or the built-in language."""
    own = any(key in changes for key in ("source", "pairs", "text"))
    chosen = recipe or (
        None if own else "stories" if changes.get("model") == "memory" else "builtin"
    )
    return load(chosen, changes, data_root), Path(chosen).stem if chosen else "run"


_FILES = (
    "source", "target", "pairs", "valid_source", "valid_target", "valid_pairs", "test_source", "test_target", "text",
    "valid_text", "test_text",
)  # fmt: skip


def _locate(values: dict[str, dict[str, Any]], name: str | Path, data_root: str | None) -> None:
    """Puts the data root before the relative file names of a recipe."""
    named = [
        (section, key)
        for section, key in [("data", f) for f in _FILES] + [("model", "vectors")]
        if key in values[section]
    ]
    named = [(section, key) for section, key in named if str(values[section][key]) != "-"]
    if not named:
        return
    root = data_root or os.environ.get("REGARD_DATA") or None
    if root is None and str(name) in packaged():
        raise SettingError(
            f"the recipe {name!r} reads files, but no data root is set",
            "give --data DIR, or set REGARD_DATA",
        )
    for section, key in named:
        values[section][key] = str(Path(root or Path(name).parent) / values[section][key])


def parse(values: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """Checked values, or an error that names the key and the repair."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = [str(part) for part in first["loc"]]
        key = where[1] if len(where) > 1 else where[0]
        if first["type"] == "extra_forbidden":
            section = SECTIONS.get(where[0])
            known = section.model_fields if section else SECTIONS
            home = f"it belongs in [{KEYS[key]}]" if key in KEYS else did_you_mean(key, known)
            raise SettingError(f"there is no setting {key!r} in [{where[0]}]", home) from None
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, SettingError):
            raise cause from None
        raise SettingError(
            f"{key} = {first['input']!r}: {first['msg'].lower()}",
            f"see `regard train --help` for {key}",
        ) from None


def _read(name: str | Path) -> dict[str, Any]:
    known = packaged()
    path = known.get(str(name), Path(name))
    if not path.is_file():
        hint = did_you_mean(str(name), known)
        raise SettingError(
            f"there is no recipe {str(name)!r}",
            f"give the path of a TOML file, or a packaged one; {hint}",
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not valid TOML: {error}", "correct that line") from None


def value_type(key: str) -> Any:
    """The plain type of a key, for the command line: int, float, bool, str, or a tuple of words to choose from."""
    hint = SECTIONS[KEYS[key]].model_fields[key].annotation
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is Literal:
        return tuple(typing.get_args(hint))
    if options and typing.get_origin(hint) is not tuple:
        inner = options[0]
        return tuple(typing.get_args(inner)) if typing.get_origin(inner) is Literal else inner
    return str if typing.get_origin(hint) is tuple else hint
