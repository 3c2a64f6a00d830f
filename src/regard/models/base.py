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
from regard.models.hf_call import Output, named, run

if TYPE_CHECKING:
    from typing import Literal

    from regard.decode.batch_decoding import SpecialTokens
    from regard.look import Look, MediaInput

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
        return run(self.model, self.spec, self.config, named(self.spec, positional, by_name))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> Self:
        self.model.to(device)
        return self

    def freeze(self, precision: str | None = None) -> Self:
        """Ready to be used only: on a CPU the weights are packed for speed, as float32 unless `int8` or `bf16` is asked for.
        A frozen model cannot be trained or saved."""
        if self.device.type == "cpu":
            edit.freeze(self.model, precision or "float32")
        elif precision:
            raise SettingError(
                f"{precision} weights are for CPUs",
                "leave it out on a GPU, or choose the device cpu",
            )
        return self

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
        """Whether `input_ids` can make token ids of a text."""
        return False

    def input_ids(self, text: str) -> list[int]:
        """The token ids of an input text, with its special tokens."""
        raise no_tokenizer()

    def input_offsets(self, text: str) -> Sequence[tuple[int, int]]:
        """The span of characters of each id of `input_ids(text)`; special tokens have (0, 0)."""
        raise no_tokenizer()

    def input_tokens(self, ids: Sequence[int]) -> list[str]:
        """The token string of each id of an input."""
        raise no_tokenizer()

    def labelled_input(self, text: str) -> tuple[Tensor, tuple[str, ...]]:
        """The input tensor of a text, [1, …], and a name for each of its positions."""
        ids = self.input_ids(text)
        return torch.tensor([ids]), tuple(self.input_tokens(ids))

    def target_ids(self, text: str) -> list[int]:
        """The token ids of a target text: what a decoder is to predict."""
        return self.input_ids(text)

    def target_offsets(self, text: str) -> Sequence[tuple[int, int]]:
        """The span of characters of each id of `target_ids(text)`; special tokens have (0, 0)."""
        return self.input_offsets(text)

    def target_tokens(self, ids: Sequence[int]) -> list[str]:
        """The token string of each id of an output."""
        return self.input_tokens(ids)

    def target_text(self, ids: Sequence[int]) -> str:
        """The text that the ids of an output decode to."""
        raise no_tokenizer()

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
