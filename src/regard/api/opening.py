"""regard.load: from a folder to the model a user holds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from regard import spec as kinds
from regard.api.held import Held, choose_device
from regard.api.translator import Translator
from regard.api.writer import LanguageModel
from regard.build import Model
from regard.checkpoint import Checkpoints
from regard.errors import CheckpointError, ModelError
from regard.interop import folder as folders
from regard.model import Decoder, EncoderDecoder
from regard.text.exact import Exact
from regard.text.tokenizer import Tokenizer


def load(folder: str | Path, *, device: str = "auto", say: Callable[[str], None] | None = None) -> Held:
    """Opens a run folder, or a folder in Hugging Face's layout. `say` is told what a user should know (standard error)."""
    folder = Path(folder)
    try:
        model, opened = folders.open_model(folder)
    except CheckpointError as error:
        model, opened = _recovered(folder, error, say or _to_standard_error)
    model.to(choose_device(device)).eval()
    return _held(folder, model, opened)


def load_translator(
    folder: str | Path, *, device: str = "auto", say: Callable[[str], None] | None = None
) -> Translator:
    """A model that translates, or the reason why the folder holds none."""
    held = load(folder, device=device, say=say)
    if not isinstance(held, Translator):
        kind = held.config.get("model_type")
        raise ModelError(
            f"{folder} holds a model that does not translate ({kind})", "give an encoder–decoder over text"
        )
    return held


def load_writer(folder: str | Path, *, device: str = "auto", say: Callable[[str], None] | None = None) -> LanguageModel:
    """A model that goes on from text, or the reason why the folder holds none."""
    held = load(folder, device=device, say=say)
    if not isinstance(held, LanguageModel):
        kind = held.config.get("model_type")
        raise ModelError(f"{folder} holds a model that does not write ({kind})", "give a language model, such as GPT-2")
    return held


def _held(folder: Path, model: Model, opened: folders.Opened) -> Held:
    match model, opened.spec:
        case EncoderDecoder(), kinds.EncoderDecoder(source=kinds.Tokens()) if opened.ids is not None:
            source, target = open_tokenizers(folder)
            return Translator(model, opened.spec, source, target, opened.ids.start, opened.config)
        case Decoder(), kinds.Decoder():
            words = folder / "tokenizer.json"
            config = opened.config | folders.said_of_tokens(folder)
            return LanguageModel(model, opened.spec, Exact.load(words) if words.exists() else None, config)
    raise ModelError(f"{folder} holds a model that nothing here uses yet", "give an encoder–decoder over text")


def open_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source and the target side's, which may be one."""
    source = Tokenizer.load(folder / "tokenizer.json")
    second = folder / "target_tokenizer.json"
    return source, Tokenizer.load(second) if second.exists() else source


def _recovered(folder: Path, error: CheckpointError, say: Callable[[str], None]) -> tuple[Model, folders.Opened]:
    """A run whose exported weights are damaged still has its training state: the newest that is whole."""
    saved = Checkpoints(folder / "state" / "checkpoints").newest(say)
    if saved is None:
        raise error
    say(f"{error.problem}; using the checkpoint of step {saved.step} instead")
    return folders.open_model(folder, saved.groups["weights"])


def _to_standard_error(text: str) -> None:
    print(text, file=sys.stderr)
