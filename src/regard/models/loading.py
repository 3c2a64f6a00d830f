"""regard.load: opens a model folder and wraps the core model in the class of its kind."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from typing_extensions import TypeVar

from regard.core.finite_outputs import require_finite_weights
from regard.data import patch_codebook
from regard.data.text.tokenizer_files import (
    holds_tokenizer,
    open_language_model_tokenizer,
    open_translation_tokenizers,
)
from regard.data.training_coverage import read_coverage
from regard.families import folder as folders
from regard.models import hub
from regard.models.base import Model, choose_device, to_standard_error
from regard.models.dual_encoder import DualEncoderModel
from regard.models.generation_config import generation_defaults
from regard.models.graph_model import GraphModel
from regard.models.image_captioner import ImageCaptioner
from regard.models.image_encoder import ImageEncoder
from regard.models.image_generator import ImageGenerator
from regard.models.language_model import LanguageModel
from regard.models.medium_to_text import MediumToText
from regard.models.memory_network import MemoryNetworkModel
from regard.models.object_detector import ObjectDetector
from regard.models.policy import Policy
from regard.models.saving import cast, choose_dtype, place
from regard.models.series_model import SeriesModel
from regard.models.sound_models import (
    CTCModel,
    SoundClassifier,
    SpectrogramClassifier,
    WaveformModel,
)
from regard.models.speech_synthesizer import SpeechSynthesizer, VariationalSynthesizer
from regard.models.speech_to_text import SpeechToText
from regard.models.text_encoder import TextEncoder
from regard.models.translator import Translator
from regard.models.visual_questions import VisualQuestionModel
from regard.system.checkpoint import Checkpoints
from regard.system.errors import CheckpointError, ModelError, Say, UnknownKeyWarning
from regard.wirings.core_model import CoreModel

M = TypeVar("M", bound=Model, default=Model)
# What is one class whatever stands on it, by what it reads.
_READERS: dict[str, type[Model]] = {
    "story": MemoryNetworkModel,
    "clips": ImageEncoder,
    "past_values": SeriesModel,
    "states": Policy,
    "input_ids pixel_values": VisualQuestionModel,
}
# What writes a text about something that is no text, by the name of that input.
_WRITERS: dict[str, type[MediumToText]] = {
    "input_features": SpeechToText,
    "pixel_values": ImageCaptioner,
}


def load(
    folder: str | Path,
    kind: type[M] = Model,  # type: ignore[assignment]  # the default of M
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "auto",
    download: bool = False,
    say: Say | None = None,
    kinds: Sequence[type] = (),
) -> M:
    """Opens a model: a run folder, or a folder in Hugging Face format.

    The class that is returned follows from the folder: `Translator` (`translate`),
    `LanguageModel` (`generate`), `TextEncoder` (`classify`, `tag`, `answer`, `fill`, `embed`),
    `ImageEncoder` (`classify`, `embed`), `DualEncoderModel` (`classify` by captions),
    `ImageCaptioner` (`caption`), `ImageGenerator` (`draw`), `SpeechSynthesizer` (`speak`),
    `SpeechToText` or `CTCModel` (`transcribe`), `SoundClassifier` or
    `SpectrogramClassifier` (`classify`), `Policy` (`act`), and others. `tasks` lists the methods
    that a model supports. Every model can be called with tensors under the argument names of
    `transformers`, saved (`save`) and inspected (`look`).

    Args:
        folder: Path of the folder, or with `download` a model name on the Hub (owner/name).
        kind: The class that the model must have, such as `regard.Translator`: an encoder–decoder
            without a head (BartModel) then has that of a language model, tied to its embedding.
        device: Device of the parameters, such as "cpu" or "cuda:0"; by default a GPU if there is
            one.
        dtype: Data type of the parameters: float32, bfloat16 or float16. By default float32 on a
            CPU, and the type of the stored weights on a GPU.
        download: Whether a model that is not on this machine may be downloaded; it is cached.
        say: Function that receives messages; by default they are printed to standard error.
        kinds: Dataclasses of model parts that are defined outside the package.

    Returns:
        The model, ready for inference and for training.

    Raises:
        ModelError: The folder has no model that can be opened, or not one of this `kind`; the
            message says what to do.
    """
    # Before `say` gets its default
    has_listener = say is not None
    say = say or to_standard_error
    # Wrong arguments are errors before anything is read or downloaded.
    torch_device = choose_device(device)
    parameter_dtype: torch.dtype | Literal["auto"] | None = choose_dtype(dtype)
    if parameter_dtype is None and torch_device.type == "cuda":
        parameter_dtype = "auto"  # as stored
    path = find_folder(folder, download, say)
    with warnings.catch_warnings():
        # Keys that nobody knows are reported once: to the caller's `say`, or as Python's warning.
        if has_listener:
            warnings.simplefilter("ignore", UnknownKeyWarning)
        core_model, opened = _open(path, parameter_dtype, kinds, say, kind.writes_targets)
    if has_listener and opened.unknown_keys:
        keys = ", ".join(opened.unknown_keys)
        say(f"ignored unknown keys in {path}/config.json: {keys}")
    # As transformers' from_pretrained: dropout is off until train() is called.
    place(core_model, torch_device)
    core_model.eval()
    # Position tables are computed, not stored: they follow the parameters.
    cast(core_model, next(core_model.parameters()).dtype)
    # On its device, which may read memory a thousand times as fast.
    require_finite_weights(core_model, str(path))
    model = _wrap(path, core_model, opened, say)
    model.folder = path
    model.coverage = read_coverage(path)
    model.say = say
    if model.defaults is not None and model.special_tokens is not None:
        # bad_words_ids of Marian's files name the padding token, which is never generated anyway.
        model.defaults = generation_defaults(
            folders.read_generation_config(path),
            opened.config,
            frozenset(model.special_tokens.banned),
        )
    if isinstance(model, kind):
        return model
    if type(model) is Model and core_model.reads_target:
        # The right kind of model, so that only its tokenizer can be missing.
        open_translation_tokenizers(path)  # raises an error that names the missing file
    raise ModelError(
        f"{folder} contains a {type(model).__name__} ({model.family}), not a {kind.__name__}",
        f"it can: {', '.join(model.tasks) or 'be called with tensors'}; try `regard predict`, or "
        "use another folder",
    )


def _open(
    path: Path,
    dtype: torch.dtype | Literal["auto"] | None,
    kinds: Sequence[type],
    say: Say,
    writes: bool,
) -> tuple[CoreModel, folders.ModelFolder]:
    """The core model of a folder; a run's checkpoint stands in for damaged weights."""
    try:
        return folders.open_model(path, dtype=dtype, kinds=kinds, writes=writes)
    except CheckpointError as error:
        weights = _recover_weights(path, error, say)
        return folders.open_model(path, weights, dtype=dtype, kinds=kinds, writes=writes)


def find_folder(folder: str | Path, download: bool, say: Say) -> Path:
    """The path of a folder; a name on the hub is downloaded if that is asked for."""
    # A folder wins over a name on the hub; a Path is always a folder.
    name = str(folder)
    path = Path(folder).expanduser()
    if path.exists() or not isinstance(folder, str) or not hub.is_name(name):
        return path
    if download:
        return hub.fetch(name, say)
    raise ModelError(
        f"the folder {name} does not exist",
        "check the path, or download a model of this name from the Hub: --download (in Python "
        "download=True)",
    )


def _wrap(folder: Path, core: CoreModel, opened: folders.ModelFolder, say: Say) -> Model:
    """The user's model of a core model, by what it reads and writes."""
    model: Any = core  # of the class that belongs to what it reads
    spec: Any = opened.spec
    config = opened.config
    ids = opened.ids
    if not core.writes:
        return _reader(core, spec)(model, spec, config=config)
    if (folder / patch_codebook.FILE).is_file():
        return ImageGenerator(model, spec, None, config)
    if not core.reads_target:
        tokenizer = open_language_model_tokenizer(folder) if holds_tokenizer(folder) else None
        # The end token may be named in generation_config.json only (Llama 3 has several there).
        return LanguageModel(model, spec, tokenizer, config | folders.generation_token_ids(folder))
    if ids is not None and spec.main_input_name in _WRITERS:
        return _WRITERS[spec.main_input_name](model, spec, ids, None, config)
    if ids is not None and holds_tokenizer(folder):
        tokenizers = open_translation_tokenizers(folder)
        forced: Any = {"forced_bos": ids.forced_bos, "forced_eos": ids.forced_eos}
        return Translator(model, spec, *tokenizers, ids.start, config, **forced)
    if ids is not None:
        # Not an error: whoever calls it with ids needs no tokenizer.
        say(f"{folder} has no tokenizer: the model accepts token ids, but not text")
    return Model(model, spec, config)


_OF_WAVEFORMS: dict[str | None, type[WaveformModel]] = {
    "classify": SoundClassifier,
    "transcribe": CTCModel,
}


def _reader(core: CoreModel, spec: Any) -> type[Any]:
    """The class of a model that writes no text, by what it reads; of two towers, the second reads
    images."""
    if spec.reads in _READERS:
        return _READERS[spec.reads]
    match spec.reads:
        case "input_ids" if "image.encoder" in core.stacks():
            return DualEncoderModel
        case "input_ids" if "spectrogram" in core.heads():
            return SpeechSynthesizer
        case "input_ids" if "vocoder" in core.heads():
            return VariationalSynthesizer
        case "input_ids":
            return TextEncoder
        case "pixel_values" if "decoder" in core.stacks():
            return ObjectDetector
        case "pixel_values":
            return ImageEncoder
        case "node_features" if spec.labels is not None:
            return GraphModel
        case "input_values":
            # A bare Wav2Vec2 has no alphabet to transcribe with.
            return _OF_WAVEFORMS.get(spec.task, WaveformModel)
        case "input_features" if spec.task == "classify":
            return SpectrogramClassifier
        case _:
            return Model


def _recover_weights(folder: Path, error: CheckpointError, say: Say) -> dict[str, torch.Tensor]:
    """The weights of a run's newest intact checkpoint, where its exported weights are damaged."""
    saved = Checkpoints(folder / "state" / "checkpoints").newest(say)
    if saved is None:
        raise error
    weights = dict(saved.groups["weights"])
    # LoRA: the checkpoint has the low-rank matrices, and only the exported weights are merged.
    if any(".added." in name for name in weights):
        raise error
    say(f"{error.problem}; using the checkpoint of step {saved.step} instead")
    return weights
