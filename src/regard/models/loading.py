"""regard.load: from a folder to the model a user holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard import spec as kinds
from regard.baselines.memory_network import MemoryNetwork
from regard.build import CoreModel
from regard.checkpoint import Checkpoints
from regard.errors import CheckpointError, ModelError
from regard.families import folder as folders
from regard.model import (
    Decoder,
    DualEncoder,
    Encoder,
    EncoderDecoder,
)
from regard.models import hub
from regard.models.base import Model, choose_device, to_standard_error
from regard.models.dual_encoder import DualEncoderModel
from regard.models.generation_config import generation_defaults
from regard.models.image_encoder import ImageEncoder
from regard.models.language_model import LanguageModel
from regard.models.memory_network import MemoryNetworkModel
from regard.models.speech import CTCModel, SpeechToText
from regard.models.text_encoder import TextEncoder
from regard.models.translator import Translator
from regard.text.tokenizer_files import (
    holds_tokenizer,
    open_language_model_tokenizer,
    open_translation_tokenizers,
)


def load(
    folder: str | Path,
    *,
    device: str = "auto",
    download: bool = False,
    say: Callable[[str], None] | None = None,
) -> Model:
    """Opens a run folder, or a folder in Hugging Face's layout; with `download`, a name on the hub (owner/name), which is
    fetched once. `say` is told what a user should know (standard error)."""
    say = say or to_standard_error
    folder = _found(folder, download, say)
    try:
        model, opened = folders.open_model(folder)
    except CheckpointError as error:
        model, opened = _recovered(folder, error, say)
    model.to(choose_device(device)).eval()
    held = _held(folder, model, opened, say)
    held.folder, held.say = folder, say
    return held


def load_translator(
    folder: str | Path, *, device: str = "auto", say: Callable[[str], None] | None = None
) -> Translator:
    """A model that translates, or the reason why the folder holds none."""
    held = load(folder, device=device, say=say)
    if isinstance(held, Translator):
        return held
    if isinstance(held.spec, kinds.EncoderDecoder | kinds.SequenceToSequence) and isinstance(
        held.spec.source, kinds.Tokens
    ):
        open_translation_tokenizers(Path(folder))  # says what is missing
    kind = held.config.get("model_type")
    raise ModelError(
        f"{folder} holds a model that does not translate ({kind})",
        "give an encoder–decoder over text",
    )


def load_language_model(
    folder: str | Path, *, device: str = "auto", say: Callable[[str], None] | None = None
) -> LanguageModel:
    """A model that goes on from text, or the reason why the folder holds none."""
    held = load(folder, device=device, say=say)
    if not isinstance(held, LanguageModel):
        kind = held.config.get("model_type")
        raise ModelError(
            f"{folder} holds a model that does not write ({kind})",
            "give a language model, such as GPT-2",
        )
    return held


def _found(folder: str | Path, download: bool, say: Callable[[str], None]) -> Path:
    """A folder as it is; a name only if it is to be fetched."""
    name = str(folder)
    if Path(folder).exists() or not isinstance(folder, str) or not hub.is_name(name):
        return Path(folder)
    if download:
        return hub.fetch(name, say)
    raise ModelError(
        f"there is no folder {name}",
        f'give one; or fetch the model of this name: load("{name}", download=True)',
    )


def _held(
    folder: Path, model: CoreModel, opened: folders.ModelFolder, say: Callable[[str], None]
) -> Model:
    match model, opened.spec:
        case EncoderDecoder(), kinds.EncoderDecoder(source=kinds.Spectrogram()) if (
            opened.ids is not None
        ):
            return SpeechToText(model, opened.spec, opened.ids, None, opened.config)
        case EncoderDecoder(), kinds.EncoderDecoder() | kinds.SequenceToSequence() if (
            opened.ids is not None
        ):
            if holds_tokenizer(folder):
                (source, target), ids = open_translation_tokenizers(folder), opened.ids
                forced: dict[str, Any] = {"opening": ids.opening, "closing": ids.closing}
                translator = Translator(
                    model, opened.spec, source, target, ids.start, opened.config, **forced
                )
                banned = frozenset(translator.special_tokens.banned)
                translator.defaults = generation_defaults(
                    folders.read_generation_config(folder), opened.config, banned
                )
                return translator
            say(f"{folder} holds no tokenizer: the model can be called with ids, but not with text")
        case Decoder(), kinds.Decoder() | kinds.RecurrentDecoder():
            words = open_language_model_tokenizer(folder) if holds_tokenizer(folder) else None
            config = opened.config | folders.generation_token_ids(folder)
            writer = LanguageModel(model, opened.spec, words, config)
            writer.defaults = generation_defaults(
                folders.read_generation_config(folder), opened.config, frozenset()
            )
            return writer
        case Encoder(), kinds.Encoder(input=kinds.Tokens()):
            return TextEncoder(model, opened.spec, None, opened.config)
        case Encoder(), kinds.Encoder(input=kinds.Patches()):
            return ImageEncoder(model, opened.spec, opened.config)
        case Encoder(), kinds.Encoder(input=kinds.Waveform()) if opened.spec.labels is not None:
            return CTCModel(model, opened.spec, None, opened.config)
        case MemoryNetwork(), kinds.MemoryNetwork():
            return MemoryNetworkModel(model, opened.spec, None, opened.config)
        case DualEncoder(), kinds.DualEncoder():
            return DualEncoderModel(model, opened.spec, None, opened.config)
    return Model(model, opened.spec, opened.config)


def _recovered(
    folder: Path, error: CheckpointError, say: Callable[[str], None]
) -> tuple[CoreModel, folders.ModelFolder]:
    """A run whose exported weights are damaged still has its training state: the newest that is whole."""
    saved = Checkpoints(folder / "state" / "checkpoints").newest(say)
    # Low-rank changes are only in the exported weights folded in; without them the rest would be the model they began with.
    if saved is None or any(".added." in name for name in saved.groups["weights"]):
        raise error
    say(f"{error.problem}; using the checkpoint of step {saved.step} instead")
    return folders.open_model(folder, saved.groups["weights"])
