"""The doors: a spec and a model go out as a Hugging Face folder and come back. No pickle, no code from the folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import tokenizers
from safetensors import SafetensorError, safe_open
from tokenizers import processors
from torch import Tensor

from regard import disk, memory
from regard import spec as kinds
from regard.build import CoreModel, outline
from regard.errors import CheckpointError, DataError, ModelError, did_you_mean
from regard.families import (
    albert,
    bart,
    bert,
    bigbird,
    clip,
    clip_text,
    clip_vision,
    deberta,
    deit,
    distilbert,
    electra,
    gemma,
    gpt,
    gpt2,
    gpt_neox,
    llama,
    longformer,
    marian,
    mbart,
    mistral,
    mpnet,
    pegasus,
    qwen2,
    reformer,
    roberta,
    t5,
    vit,
    wav2vec2,
    whisper,
)
from regard.families import (
    native as own,
)
from regard.families.sequence_classifier import WithSequenceClassifier
from regard.families.tensor_table import Rule, aligned, to_ours, to_theirs
from regard.parameter_count import parameter_count

WEIGHTS = "model.safetensors"
POSITIONS = 1024  # what transformers prepares for where ours grows as needed; it costs memory there, and nothing here


class Family(Protocol):
    """What each family's file offers. `FORM` is the kind of its models and of their input; `config` and `table` are asked of
    such models only. `spec` is told which tensors are `stored`, because a config does not always say which heads there are;
    without them, the config decides. `PREFIX` stands before the names of the model inside one with a head."""

    @property
    def FORM(self) -> tuple[Any, type]: ...
    @property
    def PREFIX(self) -> str: ...
    def config(self, model: Any, positions: int) -> dict[str, Any]: ...
    def spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> Any: ...
    def table(self, model: Any, positions: int) -> list[Rule]: ...


# By model_type, in the order in which a spec is tried; the last one takes everything.
FAMILIES: dict[str, Family] = {
    "marian": marian,
    "pegasus": pegasus,
    "bart": bart.BART,
    "mbart": mbart.MBART,
    "t5": t5,
    "whisper": whisper,
    "gpt2": WithSequenceClassifier(gpt2.GPT2, "GPT2"),
    "openai-gpt": WithSequenceClassifier(gpt.GPT, "OpenAIGPT"),
    "gpt_neox": WithSequenceClassifier(gpt_neox, "GPTNeoX"),
    "llama": WithSequenceClassifier(llama.LLAMA, "Llama"),
    "mistral": WithSequenceClassifier(mistral.MISTRAL, "Mistral"),
    "qwen2": WithSequenceClassifier(qwen2.QWEN2, "Qwen2"),
    "gemma": WithSequenceClassifier(gemma.GEMMA, "Gemma"),
    "bert": bert.BERT,
    "roberta": roberta.ROBERTA,
    "camembert": roberta.CAMEMBERT,
    "xlm-roberta": roberta.XLM_ROBERTA,
    "distilbert": distilbert.DISTILBERT,
    "albert": albert.ALBERT,
    "electra": electra.ELECTRA,
    "mpnet": mpnet.MPNET,
    "deberta-v2": deberta,
    "longformer": longformer,
    "big_bird": bigbird,
    "reformer": reformer,
    "vit": vit.VIT,
    "deit": deit.DEIT,
    "wav2vec2": wav2vec2,
    "clip": clip,
    "clip_text_model": clip_text.TEXT,
    "clip_vision_model": clip_vision.VISION,
    "regard": own,
}


@dataclass(frozen=True)
class SpecialTokenIds:
    """The tokens that frame sequences: padding, the first of a target, the last, and the unknown one, if any.

    `opening` is forced to be the first token generated, and `closing` says that the last one which a limit allows is forced
    to be the end: BART's and mBART's files ask for that, and `decode.search.Ends` takes it.
    """

    pad: int
    start: int
    end: int
    unk: int | None = None
    opening: int | None = None
    closing: bool = False


@dataclass(frozen=True)
class ModelFolder:
    """A model folder, read: weights under our names and in the precision they are stored in."""

    spec: kinds.Model
    weights: dict[str, Tensor]
    ids: SpecialTokenIds | None  # None for models without framed targets
    config: dict[str, Any]

    @property
    def kind(self) -> str:
        """The family, to hand to `describe` and `write_weights` where another one could say the same."""
        return str(self.config.get("model_type"))

    @property
    def positions(self) -> int:
        """What to hand to `describe` and `write_weights` to get the same files again."""
        return int(self.config.get("max_position_embeddings") or POSITIONS)


# ------------------------------------------------------------------ out


def describe(
    model_spec: kinds.Model,
    ids: SpecialTokenIds | None = None,
    positions: int = POSITIONS,
    kind: str | None = None,
) -> dict[str, Any]:
    """The content of config.json, in the words of the first family that can say it; `kind` is the model_type to try
    before all others, because some families share a machine and differ in names only."""
    said = family_of(model_spec, kind).config(model_spec, positions)
    if ids is None:
        return said
    return {
        **said,
        **_tokens(ids),
        **_forced(ids),
        **({} if ids.unk is None else {"unk_token_id": ids.unk}),
    }


def write_weights(
    path: Path,
    model: CoreModel,
    model_spec: kinds.Model,
    positions: int = POSITIONS,
    kind: str | None = None,
) -> None:
    """model.safetensors as `describe` announces it; replaced as a whole or not at all."""
    rules = family_of(model_spec, kind).table(model_spec, positions)
    tensors = to_theirs(
        rules, {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    )
    with disk.writing(path.name), disk.replacing(path) as temporary:
        disk.write_tensors(temporary, tensors)


def generation_config(
    ids: SpecialTokenIds,
    *,
    beam: int = 1,
    length_penalty: float | None = None,
    max_length: int = 512,
    own: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The content of generation_config.json, as close to our search as transformers has the words for.

    `length_penalty` is the exponent of `Power` (log P / n^alpha). GNMT's ((5 + n) / 6)^alpha has no name there: the
    same alpha is the closest, because for long outputs the two rank alike. Padding is never produced, and probabilities
    are renormalised without it, as here. `own` is the penalty in our words, for who opens the folder here: {"gnmt": 0.6}.
    """
    search = {"num_beams": beam, "early_stopping": True} if beam > 1 else {"num_beams": 1}
    penalty = {"length_penalty": length_penalty} if beam > 1 and length_penalty is not None else {}
    never = {"bad_words_ids": [[ids.pad]], "renormalize_logits": True} if ids.pad != ids.end else {}
    forced = {key: value for key, value in _forced(ids).items() if value is not None}
    return {
        **_tokens(ids),
        **forced,
        **search,
        **penalty,
        **never,
        "max_length": max_length,
        "regard_search": dict(own or {}),
    }


def tokenizer_config(
    pad: str, start: str, end: str, unk: str | None, *, positions: int = POSITIONS
) -> dict[str, Any]:
    """The content of tokenizer_config.json: tokenizer.json as it is, with these four special tokens.

    A special token that is written out in a text stays text, as in `text.Tokenizer`.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad,
        "bos_token": start,
        "eos_token": end,
        **({} if unk is None else {"unk_token": unk}),
        "model_max_length": positions,
        "padding_side": "right",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }


def with_end(tokenizer_json: str, end_token: str) -> str:
    """tokenizer.json with a post-processor that appends the end token, as sources here have it."""
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    end = tokenizer.token_to_id(end_token)
    if end is None:
        raise DataError(
            f"the tokenizer has no token {end_token!r}", "name the token that ends its sentences"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end_token}",
        pair=f"$A {end_token} $B {end_token}",
        special_tokens=[(end_token, end)],
    )
    return tokenizer.to_str(pretty=True)


def family_of(model_spec: kinds.Model, kind: str | None = None) -> Family:
    first = [FAMILIES[kind]] if kind in FAMILIES else []
    return next(family for family in (*first, *FAMILIES.values()) if _says(family, model_spec))


def _says(family: Family, model: kinds.Model) -> bool:
    """Whether its config.json can say all that the spec says: read again, it gives the same."""
    form, given = family.FORM
    if not isinstance(model, form) or not isinstance(_input(model), given):
        return False
    try:
        return bool(family.spec(family.config(model, 1)) == model)
    except ModelError:
        return False


def _input(model: kinds.Model) -> kinds.FrontEnd | None:
    match model:
        case kinds.MemoryNetwork():
            return None
        case kinds.Encoder():
            return model.input
        case kinds.Decoder() | kinds.RecurrentDecoder():
            return model.tokens
        case kinds.EncoderDecoder() | kinds.SequenceToSequence():
            return model.source
        case kinds.DualEncoder():
            return model.text.input


def _forced(ids: SpecialTokenIds) -> dict[str, int | None]:
    # Always said: transformers would otherwise force its own default, some other token, onto the end of long outputs.
    last = {"forced_eos_token_id": ids.end if ids.closing else None}
    return last if ids.opening is None else {"forced_bos_token_id": ids.opening, **last}


def _tokens(ids: SpecialTokenIds) -> dict[str, int]:
    names = {
        "pad_token_id": ids.pad,
        "bos_token_id": ids.start,
        "decoder_start_token_id": ids.start,
    }
    return {**names, "eos_token_id": ids.end}


def with_labels(
    config: Mapping[str, Any], task: kinds.HeadTask, names: Sequence[str]
) -> tuple[kinds.Model, dict[str, Any]]:
    """What a model's config.json would say, and what it would be, with labels for `task` on top instead of its head: in all
    families the architecture is the family's name followed by that of the task."""
    tops = {
        "classify": "ForSequenceClassification",
        "tag": "ForTokenClassification",
        "answer": "ForQuestionAnswering",
    }
    kind, said = str(config.get("model_type")), config.get("architectures")
    stem = (
        re.fullmatch(r"(\w+?)((LMHead)?Model|For[A-Z]\w+)", str(said[0]))
        if isinstance(said, list) and said
        else None
    )
    if stem is None or kind not in FAMILIES or task not in tops:
        raise ModelError(
            f"a model of the type {kind!r} cannot have labels to {task}",
            "give an encoder, such as BERT",
        )
    dropped = ("num_labels", "regard_pooler", "problem_type", "id2label", "label2id")
    changed = {key: value for key, value in config.items() if key not in dropped}
    changed["architectures"] = [stem[1] + tops[task]]
    if task != "answer":
        changed["id2label"] = {str(i): name for i, name in enumerate(names)}
        changed["label2id"] = {name: i for i, name in enumerate(names)}
    model = FAMILIES[kind].spec(changed)
    _check_task(changed, model)
    return model, changed


# ------------------------------------------------------------------ in


def peek(folder: str | Path) -> ModelFolder:
    """What a folder describes, at once and at any size: config.json, and the names of tensors where there are any."""
    folder = Path(folder)
    return _described(folder, lambda: _names(_files(folder)) if _holds_weights(folder) else ())


def read(folder: str | Path, weights: Mapping[str, Tensor] | None = None) -> ModelFolder:
    """A model folder, ours or from elsewhere, checked whole: every key understood, every tensor used.

    `weights`, under our names, stand in for the folder's own.
    """
    folder = Path(folder)
    opened = _described(folder, lambda: () if weights is not None else _names(_files(folder)))
    if weights is not None:
        return replace(opened, weights=dict(weights))
    memory.require(parameter_count(opened.spec), f"the model of {folder}")
    family = FAMILIES[opened.kind]
    shapes = {name: parameter.shape for name, parameter in outline(opened.spec).named_parameters()}
    rules = family.table(opened.spec, opened.positions)
    tensors = {name: t for file in _files(folder) for name, t in _load(file).items()}
    return replace(opened, weights=to_ours(rules, aligned(rules, tensors, family.PREFIX), shapes))


def _described(folder: Path, stored: Callable[[], Collection[str]]) -> ModelFolder:
    config = _config(folder)
    kind = str(config.get("model_type"))
    if config.get("model_type") is None:  # the first files have none
        raise ModelError(
            f"{folder}/config.json does not say its model_type", "add it, such as bert or gpt2"
        )
    if kind not in FAMILIES:
        near, known = did_you_mean(kind, FAMILIES), f"known: {', '.join(sorted(FAMILIES))}"
        repair = known if near == known else f"{near} ({known})"
        raise ModelError(f"{folder} holds a model of the unknown type {kind!r}", repair)
    model = FAMILIES[kind].spec(config, stored())
    _check_task(config, model)
    ids = (
        _ids(config, generation(folder))
        if isinstance(model, kinds.EncoderDecoder | kinds.SequenceToSequence)
        else None
    )
    return ModelFolder(model, {}, ids, config)


def _check_task(config: Mapping[str, Any], model: kinds.Model) -> None:
    """Encoders have many heads, and their families look at the name; what generates has one, over the vocabulary."""
    named = config.get("architectures")
    name = str(named[0]) if isinstance(named, list) and named else ""
    known = ("ForConditionalGeneration", "ForCausalLM")
    if (
        isinstance(model, (kinds.Decoder, kinds.EncoderDecoder))
        and "For" in name
        and not name.endswith(known)
    ):
        raise ModelError(
            f"a {name} is not understood: its head is not one over the vocabulary",
            f"known: …{known}",
        )


def open_model(
    folder: str | Path, weights: Mapping[str, Tensor] | None = None
) -> tuple[CoreModel, ModelFolder]:
    """The model of a folder, in float32 and evaluation mode, with nothing initialised that is overwritten."""
    opened = read(folder, weights)
    model = outline(opened.spec)
    # Not strict: a shared parameter is stored under its first name, and setting it there sets it everywhere.
    model.load_state_dict(
        {name: t.float() for name, t in opened.weights.items()}, strict=False, assign=True
    )
    hollow = [
        name
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if tensor.is_meta
    ]
    assert not hollow, f"never filled: {hollow}"
    return model.eval(), opened


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder} is not a model or run folder", "give the folder that holds config.json"
        )
    config = _json(path)
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds no object", "fetch or write the folder again")
    return config


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} is not valid JSON: {error}", "fetch or write the folder again"
        ) from None


def generation(folder: Path) -> dict[str, Any] | None:
    """The content of generation_config.json, if there is one."""
    path = folder / "generation_config.json"
    said = _json(path) if path.is_file() else None
    return said if isinstance(said, dict) else None


def said_of_tokens(folder: Path) -> dict[str, Any]:
    """The ids in generation_config.json, which stand over those of config.json, as in transformers."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {key: value for key, value in (generation(folder) or {}).items() if key in names}


def _ids(config: Mapping[str, Any], generation: Mapping[str, Any] | None) -> SpecialTokenIds:
    """Where there is a generation_config.json, it alone says what is forced, as in transformers."""
    said = config if generation is None else generation
    # T5 begins with its padding, and its config need not say so.
    starts = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    start = next((key for key in starts if config.get(key) is not None), starts[0])
    unk = None if config.get("unk_token_id") is None else _id(config, "unk_token_id")
    opening, last = (
        None if said.get(key) is None else _id(said, key)
        for key in ("forced_bos_token_id", "forced_eos_token_id")
    )
    end = _id(config, "eos_token_id")
    return SpecialTokenIds(
        _id(config, "pad_token_id"), _id(config, start), end, unk, opening, closing=last == end
    )


def _id(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ModelError(
            f"config.json: {key} is {value!r}, not one token's id",
            "write the id of the token there",
        )
    return value


def _holds_weights(folder: Path) -> bool:
    return (folder / WEIGHTS).is_file() or (folder / f"{WEIGHTS}.index.json").is_file()


def _files(folder: Path) -> list[Path]:
    """Where the tensors are; that the index and its files agree is checked by their headers."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / f"{WEIGHTS}.index.json"
    if index.is_file():
        return _shards(folder, _json(index))
    pickles = sorted(
        path.name for suffix in ("bin", "pt", "pth", "ckpt") for path in folder.glob(f"*.{suffix}")
    )
    if pickles:
        raise ModelError(
            f"{folder} holds its weights as a pickle ({pickles[0]}), which can run any code when it is opened",
            "convert it where you trust it, with transformers: "
            "AutoModelForSeq2SeqLM.from_pretrained(folder).save_pretrained(other, safe_serialization=True)",
        )
    raise ModelError(
        f"{folder} holds no {WEIGHTS}",
        "train until the first checkpoint, or fetch the folder again",
    )


def _shards(folder: Path, index: Any) -> list[Path]:
    files = index.get("weight_map") if isinstance(index, dict) else None
    # Plain names only: an index must not lead out of its folder.
    if not isinstance(files, dict) or not all(
        isinstance(f, str) and Path(f).name == f for f in files.values()
    ):
        raise CheckpointError(f"{folder}/{WEIGHTS}.index.json is damaged", "fetch the folder again")
    paths = [folder / file for file in sorted(set(files.values()))]
    if different := sorted({*_names(paths)} ^ files.keys()):
        raise CheckpointError(
            f"the index of {folder} and its files disagree about {different[0]}",
            "fetch the folder again",
        )
    return paths


def _names(files: Iterable[Path]) -> list[str]:
    """The tensors' names, from the headers alone."""
    names = []
    for path in files:
        with _damage(path), safe_open(path, "pt") as file:
            names += file.keys()
    return names


def _load(path: Path) -> dict[str, Tensor]:
    with _damage(path):
        tensors, altered = disk.mapped(path), disk.altered(path)
    if altered:
        raise CheckpointError(f"{path} is damaged: its content is not what was written", _AGAIN)
    return tensors


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or incomplete: {error}", _AGAIN) from None


_AGAIN = "fetch it again, or go back to an earlier checkpoint"
