"""The base class of all loaded models: a core model with its spec, config and tokenizer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from regard import spec as kinds
from regard.builder import edit
from regard.builder.parameter_count import parameter_count, parameters_by_module
from regard.data.text.tokenizer import Text, Tokenizer
from regard.data.text.tokenizer_files import open_encoder_tokenizer
from regard.data.training_coverage import TrainingCoverage
from regard.look.inspectable import Reading
from regard.models import hf_loss, saving
from regard.models.hf_call import (
    IMAGE_OPTIONS,
    OUTPUT_OPTIONS,
    ModelOutput,
    bind_arguments,
    call,
    fold_choices,
)
from regard.models.hf_loss import LABELS, add_decoder_inputs
from regard.models.inputs.input_checks import check_inputs, check_separators, require_known_ids
from regard.models.inputs.input_warnings import warn_of_inputs
from regard.models.inputs.token_batches import (
    framed_rows,
    padded_inputs,
    smaller_limit,
    text_list,
)
from regard.models.labels import Scores, label_name, label_names, label_scores, top_labels
from regard.models.saving import Files, cast, choose_dtype, place
from regard.models.tasks import Tasks
from regard.system import disk
from regard.system.arguments import whole_number
from regard.system.errors import DataError, ModelError, Say, SettingError
from regard.wirings.core_model import CoreModel

if TYPE_CHECKING:
    from typing import Literal

    from regard.data.text.ctc import CTCDecoder
    from regard.decode.batch_decoding import SpecialTokens
    from regard.look import Look, MediaInput
    from regard.look.backdrop import Backdrop
    from regard.models.generation_config import GenerationDefaults

__all__ = ["Files", "Model", "ModelOutput", "TokenizerModel", "choose_device", "to_standard_error"]


# What people of transformers and PyTorch look for, and how it is done here.
_OTHER_NAMES = {
    "save_pretrained": "model.save(folder)",
    "from_pretrained": "regard.load(folder)",
    "push_to_hub": "model.save(folder), which writes what the hub takes",
    "half": 'model.to(dtype="float16")',
    "bfloat16": 'model.to(dtype="bfloat16")',
    "float": 'model.to(dtype="float32")',
    "cuda": 'model.to("cuda")',
    "cpu": 'model.to("cpu")',
    "named_parameters": "model.model.named_parameters()",
    "zero_grad": "model.model.zero_grad()",
}


def to_standard_error(text: str) -> None:
    """Prints a message where it does not mix with output."""
    print(text, file=sys.stderr)


class Model(Tasks):
    """A core model with its spec and the config.json that it came with; made by `regard.load`.

    Called with Hugging Face's argument names it returns the same main tensors under the same names.
    As there, `output_hidden_states` adds the embeddings and the output of each layer,
    `output_attentions` the attention weights of each layer [B, H, T, S], and the caller decides
    about gradients: `with torch.inference_mode():` where none are needed. With `labels` (of
    answers, start_positions and end_positions) the first output is their `loss`, and
    `return_dict=False` gives a tuple.
    """

    def __init__(
        self, model: CoreModel, spec: kinds.Model, config: dict[str, Any] | None = None
    ) -> None:
        self.model = model  # the nn.Module
        self.spec = spec
        self.config = config or {}  # of the folder; empty for a model made in memory
        self.folder: Path | None = None  # where it was opened from
        self.changed_files: Files = {}  # companion files that are no longer those of its folder
        self.coverage = TrainingCoverage()  # of training_coverage.json, where a folder has one
        self.say: Say = to_standard_error  # receives warnings and messages

    def __call__(self, *inputs: Tensor | None, **named_inputs: Any) -> ModelOutput:
        # Among the keywords, so that a type checker accepts `model(**model.tokens(texts))`.
        options = {name: bool(named_inputs.pop(name, False)) for name in OUTPUT_OPTIONS}
        if any(one.kind == "pixels" for one in self.spec.inputs):
            options |= {name: bool(named_inputs.pop(name, False)) for name in IMAGE_OPTIONS}
        as_names = named_inputs.pop("return_dict", None) is not False
        # A cache is the caller's, of `start` and `step`: none comes out of a call.
        named_inputs.pop("use_cache", None)
        passed = {name: named_inputs.pop(name, None) for name in LABELS}
        labels = {name: value for name, value in passed.items() if value is not None}
        tensors, choices = self._arguments(*inputs, labels=labels.get("labels"), **named_inputs)
        check_separators(self.spec, tensors)
        try:
            outputs = call(self.model, self.config, tensors, choices=choices, **options)
            if labels:
                loss = hf_loss.loss(self.spec, self.config, tensors, outputs, labels)
                outputs = ModelOutput({"loss": loss, **outputs})
            return outputs if as_names else tuple(outputs.values())  # type: ignore[return-value]
        except IndexError:
            # Looked for afterwards: on the way in it would cost each call a pass over its ids.
            require_known_ids(self.spec, tensors)
            raise

    def _arguments(
        self, *inputs: Any, labels: Tensor | None = None, **named_inputs: Any
    ) -> tuple[dict[str, Tensor], torch.Size | None]:
        """The tensors of a call by their names, which fit the model, and the choices in a row."""
        bound = bind_arguments(self.spec, inputs, named_inputs)
        add_decoder_inputs(self.spec, self.config, bound, labels)
        tensors, choices = fold_choices(self.spec, bound)
        check_inputs(self.spec, tensors, self.dtype)
        return tensors, choices

    def __repr__(self) -> str:
        """Family, size, dtype and device: `Translator(marian, 63.1M parameters, float32, cpu)`."""
        size = _format_count(self.parameter_count)
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{type(self).__name__}({self.family}, {size} parameters, {dtype}, {self.device})"

    def _repr_html_(self) -> str:
        """For a notebook: parameters by module, the tasks, and the tree of modules."""
        # Imported lazily to keep startup fast.
        from regard.look import drawing

        counts = parameters_by_module(self.spec)
        labels = [f"{count:,}" for count in counts.values()]
        bars = drawing.bars([*counts.values()], [*counts], title=repr(self), labels=labels)
        tasks = ", ".join(f"<code>.{task}</code>" for task in self.tasks)
        caption = f"<figcaption>{tasks}</figcaption>"
        tree = f'<pre style="overflow-x:auto">{escape(str(self.model))}</pre>'
        modules = f"<details><summary>modules</summary>{tree}</details>"
        return drawing.figure(bars, "parameters by module", caption) + modules

    def tokens(
        self,
        texts: Text | Sequence[Text],
        max_length: int | None = None,
        *,
        truncation: bool = False,
        targets: str | Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        """The padded tensors of texts that the call takes: `model(**model.tokens(texts))`.

        They are on the model's device, under transformers' names: input_ids and attention_mask,
        token_type_ids where the model has segments (a text may then be a pair, as a tuple); of an
        encoder–decoder with `targets` also decoder_input_ids and labels. A text with more than
        `max_length` tokens, or than the model has positions, is an error, or is truncated with a
        message if `truncation`.
        """
        if targets is not None:
            raise SettingError(
                "this model is not an encoder–decoder, so it takes no `targets`",
                "remove `targets`",
            )
        tensors = self.text_tensors(texts, max_length, truncation)
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def text_tensors(
        self, texts: Text | Sequence[Text], max_length: int | None, truncation: bool
    ) -> dict[str, Tensor]:
        """What `tokens` gives, on the CPU."""
        tokenizer = self.input_tokenizer
        limit = smaller_limit(max_length, self.positions)
        rows = framed_rows(tokenizer, text_list(texts), limit, truncation, self.say)
        # Whatever stands in the padding, the mask hides it.
        return padded_inputs(rows, tokenizer.special_token_id("pad") or 0)

    @property
    def positions(self) -> int | None:
        """The longest text that it reads, in tokens; None where any length has positions."""
        return self.spec.max_length

    # ------------------------------------------------------------------ what it can do

    truncates: ClassVar[frozenset[str]] = frozenset()  # the tasks that can truncate long texts
    writes_targets: ClassVar[bool] = False  # whether it has a decoder behind an encoder that writes
    # Whether all its inputs are paths, of series, trajectories or graphs; and of which files.
    reads_files: ClassVar[bool] = False
    file_suffix: ClassVar[str] = ".csv"

    @property
    def evaluations(self) -> tuple[str, ...]:
        """The tasks of `evaluation.tasks.TASKS` that it can be scored by."""
        return ()

    @property
    def labels(self) -> list[str] | None:
        """The names of its labels, in the order of the logits; None where callers give labels."""
        labels = self.spec.labels
        return None if labels is None else label_names(self.config, labels.count)

    def require_labels(self) -> list[str]:
        """The names of its labels; `ModelError` where it has none."""
        names = self.labels
        if names is None:
            raise ModelError(
                f"this model ({self!r}) has no classification head",
                f"it can: {', '.join(self.tasks)}; fine-tune it for classification",
            )
        return names

    def scores(self, logits: Iterable[Tensor]) -> list[Scores]:
        """Label → probability of each row of logits [labels], likeliest first."""
        names = self.require_labels()
        return [label_scores(row, names, self.config.get("problem_type")) for row in logits]

    # ------------------------------------------------------------------ about it

    @property
    def family(self) -> str:
        """The model_type of config.json, or the kind of the spec for a model that has none yet."""
        return str(self.config.get("model_type") or type(self.spec).__name__)

    @property
    def parameter_count(self) -> int:
        """The number of trainable parameters; shared ones count once."""
        # Of the spec: packed weights are no parameters any more.
        return parameter_count(self.spec)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The data type of the parameters."""
        return next(self.model.parameters()).dtype

    # ------------------------------------------------------------------ as a module of PyTorch

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters, as an optimizer takes them."""
        return self.model.parameters()

    def state_dict(self) -> dict[str, Any]:
        """The parameters and buffers by name."""
        return self.model.state_dict()

    def train(self, mode: bool = True) -> Self:
        """Turns dropout on, or off again."""
        self.model.train(mode)
        return self

    def eval(self) -> Self:
        """Turns dropout off."""
        return self.train(False)

    if not TYPE_CHECKING:
        # Hidden from type checkers, which would otherwise accept any name.
        def __getattr__(self, name: str) -> Any:
            problem = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OTHER_NAMES:
                problem += f" → use {_OTHER_NAMES[name]}"
            raise AttributeError(problem)

    # ------------------------------------------------------------------ device, precision, files

    def to(
        self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
    ) -> Self:
        """Moves the parameters to a device, casts them to a data type, or both.

        Both may be names, as `regard.load` takes them: `model.to("cuda", "bfloat16")`.
        """
        parameter_dtype = choose_dtype(dtype) or self.dtype
        target = self.device if device is None else choose_device(device)
        if (parameter_dtype, target) != (self.dtype, self.device):
            self._require_unpacked("moved or cast")
            place(self.model, target)
            cast(self.model, parameter_dtype)
        return self

    def prepare_for_inference(self, precision: str | None = None) -> Self:
        """Makes the model faster for use only: it cannot be trained or saved afterwards.

        On a CPU the weights are packed for its matrix kernels, as float32, or quantized to `bf16`
        or `int8`. On a GPU, `bf16` casts them.
        """
        # oneDNN's packed layouts and int8 kernels exist for CPUs only.
        if self.device.type == "cpu":
            if precision is not None:
                edit.require_precision(self.model, precision)
            edit.pack_weights(self.model, precision or "float32")
        elif precision == "bf16":
            cast(self.model, torch.bfloat16)
        elif precision not in (None, "float32"):
            raise SettingError(
                f"{precision} weights are supported on CPUs only",
                "remove the option, use bf16, or use the device cpu",
            )
        return self

    def _require_unpacked(self, change: str) -> None:
        """Refuses what can be done with weights only that are not packed for inference."""
        if edit.is_packed(self.model):
            raise ModelError(
                f"weights prepared for inference cannot be {change}",
                "load the model again, and change it before `prepare_for_inference`",
            )

    def save(self, folder: str | Path) -> Path:
        """Writes a folder in Hugging Face's layout, completely or not at all.

        The folder is new, or holds a model that is replaced.
        """
        self._require_unpacked("saved")
        # A model from a folder has its companion files there; another one brings its own.
        files = self.files() if self.folder is None else self.changed_files
        return saving.save(Path(folder), self.model, self.spec, self.config, self.folder, files)

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of its folder; empty without the folder or the file."""
        # Models that are made in memory have no files: transformers' defaults apply.
        return {} if self.folder is None else disk.read_json_object(self.folder / name, DataError)

    def files(self) -> Files:
        """Companion files of the weights, name → content, for a model that has no folder yet.

        What stands under `config.json` is added to the keys that describe the spec.
        """
        return {}

    def with_image_size(self, size: int) -> Self:
        """The same model for images of another side."""
        raise SettingError("this model reads no images", "remove `image_size`")

    def look(
        self,
        text: str | Path | Tensor,
        *,
        target: str | None = None,
        ask: Sequence[str] = ("*.weights",),
        off: Sequence[tuple[str, int]] = (),
    ) -> Look:
        """Runs the model with probes that record what passes at named positions.

        `text` is the path of a file for a model of images, sound, series or graphs. Names are
        `encoder.3.self.weights`, `decoder.2.residual`, `logits`, and may hold * and ?; see
        `regard.look`.
        """
        # Imported late: the analyses are built on models, not models on them.
        from regard.look import look

        # Of a model that reads texts as well, a string may be either.
        if self.medium is not None and isinstance(text, str) and os.path.isfile(text):
            text = Path(text)
        if isinstance(text, str):
            self.warn_of_input(text)
        return look(self, text, target=target, ask=ask, off=off)

    # ------------------------------------------------------------------ for `regard.look`
    # These members satisfy `regard.look.Inspectable`. Here they are of a model without a tokenizer.

    defaults: GenerationDefaults | None = None  # of generation_config.json, if it writes text
    special_tokens: SpecialTokens | None = None  # that frame decoding; None if it decodes nothing
    medium: Literal["image", "sound"] | None = None  # the files that it can be shown

    def target_language(self, language: str | None) -> tuple[list[int], SpecialTokens | None]:
        """What a source begins with, and the special tokens of its target, to write a language."""
        if language is not None:
            raise SettingError("this model writes one language", "remove the language")
        return [], self.special_tokens

    @property
    def accepts_text(self) -> bool:
        """Whether there is an `input_tokenizer`."""
        return False

    @property
    def input_tokenizer(self) -> Tokenizer:
        """The tokenizer of inputs, with the special tokens that the model reads."""
        raise no_tokenizer()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the texts that it reads."""
        return self.input_tokenizer

    @property
    def output_tokenizer(self) -> Tokenizer:
        """The tokenizer of outputs: of the targets of an encoder–decoder, framed as its labels."""
        return self.input_tokenizer

    def warn_of_unsupported(self) -> None:
        """Reports the keys of generation_config.json that have no effect here, once."""
        if self.defaults is not None and self.defaults.unsupported:
            keys = ", ".join(self.defaults.unsupported)
            self.say(f"ignored in generation_config.json: {keys}")
            self.defaults = replace(self.defaults, unsupported=())

    def warn_of_input(self, text: str) -> None:
        """Warns of a text that is unlike all of training; a path of another medium is none."""
        if self.accepts_text and not (self.medium is not None and os.path.isfile(text)):
            rows = [self.input_tokenizer.input_ids(text)]
            warn_of_inputs(self.input_tokenizer, [text], rows, self.coverage)

    def label_name(self, index: int) -> str:
        """The name of a class, as the answers of the model have it."""
        index = whole_number("index", index, least=0)
        names = label_names(self.config, len(self.config.get("id2label") or ()))
        return names[index] if index < len(names) else label_name(self.config, index)

    def read_text(self, text: str) -> Reading:
        """A text, or the file of a series or graph whose path it is, with names of positions."""
        ids = self.input_tokenizer.input_ids(text)
        return Reading(torch.tensor([ids]), tuple(self.input_tokenizer.tokens(ids)))

    def with_answer(self, backdrop: Backdrop, logits: Tensor) -> Backdrop:
        """The backdrop with what the model answers, by the output of its head [1, …]."""
        return replace(backdrop, answer=self.short_answer(logits))  # type: ignore[type-var]

    def short_answer(self, logits: Tensor) -> str:
        """What the model answers in words, by the output of its head [1, …]."""
        return "" if self.labels is None else top_labels(self.scores(logits.float())[0])

    @property
    def decoder(self) -> CTCDecoder:
        """The alphabet of a CTC model and its blank."""
        raise ModelError("this model has no CTC alphabet", "load a CTC model, such as Wav2Vec2")

    def read_medium(self, data: bytes) -> MediaInput:
        """Prepares the contents of an image or sound file as an input."""
        raise SettingError("this model reads text only", "pass a text")

    def read_file(self, path: Path) -> MediaInput:
        """Prepares such a file, or a folder of the frames of a clip."""
        return self.read_medium(disk.read_bytes(path))


class TokenizerModel(Model):
    """A model with one tokenizer, which is opened when text first comes.

    Without one, the model can still be called with tensors.
    """

    def __init__(
        self,
        model: CoreModel,
        spec: kinds.Model,
        tokenizer: Tokenizer | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, spec, config)
        self._tokenizer = None if tokenizer is None else self._for_vocabulary(tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that was given, or that of the folder."""
        if self._tokenizer is None:
            if self.folder is None:
                raise DataError(
                    "this model has no tokenizer",
                    "pass one to the constructor, or load the model from a folder",
                )
            self._tokenizer = self._for_vocabulary(open_encoder_tokenizer(self.folder))
        return self._tokenizer

    def _for_vocabulary(self, tokenizer: Tokenizer) -> Tokenizer:
        if self.spec.vocab_size is None:
            return tokenizer
        return tokenizer.for_model(self.spec.vocab_size)

    def files(self) -> Files:
        return {} if self._tokenizer is None else self._tokenizer.files()

    @property
    def accepts_text(self) -> bool:
        try:
            return self.tokenizer is not None
        except DataError:  # no tokenizer in its folder
            return False

    @property
    def input_tokenizer(self) -> Tokenizer:
        return self.tokenizer


def no_tokenizer() -> SettingError:
    """The error of a model that has no tokenizer for its inputs."""
    return SettingError(
        "this model has no tokenizer, so it cannot read text",
        "put its tokenizer.json into the folder, or (in Python) pass a tensor",
    )


def choose_device(name: str | torch.device) -> torch.device:
    """The device of this name; `auto` is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        # torch would fail later, at the first tensor, and say less.
        is_there = device.type != "cuda" or (device.index or 0) < torch.cuda.device_count()
        if device.type not in ("cpu", "cuda"):
            # PyTorch knows others by name, and may have been built without them: mps, xpu …
            # A meta tensor has no numbers: reading one fails there as well.
            torch.ones(1, device=device).item()
    except (RuntimeError, TypeError, AssertionError, AttributeError, ImportError):
        is_there = False
    if not is_there:
        raise SettingError(f"device {name!r} is not available", "use auto, cpu, cuda or cuda:N")
    return device


def _format_count(count: int) -> str:
    """A number of parameters as papers write it: 812, 4.1K, 63.1M, 6.7B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)
