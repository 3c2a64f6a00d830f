"""What every model that a user holds has in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from regard import edit
from regard import spec as kinds
from regard.build import CoreModel
from regard.errors import SettingError
from regard.models import saving
from regard.models.hf_call import Output, bind_arguments, call

if TYPE_CHECKING:
    from typing import Literal

    from regard.decode.batch_decoding import SpecialTokens
    from regard.look import Look, MediaInput
    from regard.text.tokenizer import Tokenizer

__all__ = ["Model", "Output", "choose_device", "to_standard_error"]


def to_standard_error(text: str) -> None:
    print(text, file=sys.stderr)


class Model:
    """A model with its description and the config.json it came with; made by `regard.load`.

    Called with Hugging Face's argument names it returns the same main tensors under the same names. As there, the caller
    decides about gradients: `with torch.inference_mode():` where none are needed.
    """

    def __init__(
        self, model: CoreModel, description: kinds.Model, config: dict[str, Any] | None = None
    ) -> None:
        self.model = model
        self.spec = description
        self.config = config or {}
        self.folder: Path | None = None  # that it was opened from
        self.say: Callable[[str], None] = to_standard_error  # told what a user should know

    def __call__(self, *positional: Tensor | None, **by_name: Tensor | None) -> Output:
        inputs = bind_arguments(self.spec, positional, by_name)
        return call(self.model, self.spec, self.config, inputs)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> Self:
        self.model.to(device)
        return self

    def prepare_for_inference(self, precision: str | None = None) -> Self:
        """Makes the model faster for use only: it cannot be trained or saved afterwards.

        On a CPU the weights are packed for its matrix kernels, as float32, or quantized to `bf16`
        or `int8`. On a GPU, `bf16` casts them.
        """
        if self.device.type == "cpu":
            edit.freeze(self.model, precision or "float32")
        elif precision == "bf16":
            self.model.to(torch.bfloat16)
        elif precision is not None:
            raise SettingError(
                f"{precision} weights are for CPUs",
                "leave it out on a GPU, give bf16, or choose the device cpu",
            )
        return self

    freeze = prepare_for_inference  # the name that it had before

    def save(self, folder: str | Path) -> Path:
        """Writes a folder in Hugging Face's layout, whole or not at all: a new one, or in place of a model that is there."""
        files = self.files() if self.folder is None else {}
        return saving.save(Path(folder), self.model, self.spec, self.config, self.folder, files)

    def files(self) -> Mapping[str, str | dict[str, Any]]:
        """What belongs into its folder beside the weights, where it was not opened from one: names and contents. Those of
        config.json are added to what the description says."""
        return {}

    def look(
        self,
        text: str | Tensor,
        *,
        target: str | None = None,
        ask: Sequence[str] = ("*.weights",),
        off: Sequence[tuple[str, int]] = (),
    ) -> Look:
        """One run with named probes (`encoder.3.self.weights`, `decoder.2.residual`, `logits`, with * and ?); see
        `regard.look`."""
        from regard.look import look

        return look(self, text, target=target, ask=ask, off=off)

    # ------------------------------------------------------------------ for `regard.look`
    # These members satisfy `regard.look.Inspectable`. Here they are of a model without a tokenizer.

    special_tokens: SpecialTokens | None = None  # that frame decoding; None if it decodes nothing
    medium: Literal["image", "sound"] | None = None  # the files that it can be shown

    @property
    def accepts_text(self) -> bool:
        """Whether there is an `input_tokenizer`."""
        return False

    @property
    def input_tokenizer(self) -> Tokenizer:
        """The tokenizer of inputs, with the special tokens that the model reads."""
        raise no_tokenizer()

    @property
    def output_tokenizer(self) -> Tokenizer:
        """The tokenizer of outputs: of the targets of an encoder–decoder, framed as its labels."""
        return self.input_tokenizer

    def labelled_input(self, text: str) -> tuple[Tensor, tuple[str, ...]]:
        """The input tensor of a text, [1, …], and a name for each of its positions."""
        ids = self.input_tokenizer.input_ids(text)
        return torch.tensor([ids]), tuple(self.input_tokenizer.tokens(ids))

    def read_medium(self, data: bytes) -> MediaInput:
        """Prepares the contents of an image or sound file as an input."""
        raise SettingError("this model reads text only", "give it a sentence")


def no_tokenizer() -> SettingError:
    return SettingError(
        "this model has no tokenizer to read text with", "give a tensor of its inputs"
    )


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one."""
    try:
        device = torch.device(
            ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
        )
    except RuntimeError:
        raise SettingError(f"there is no device {name!r}", "auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingError(f"PyTorch finds no GPU for {name!r} here", "use cpu or auto")
    return device
