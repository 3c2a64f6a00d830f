"""The models that are measured: fresh weights from one seed, and the folder that peers open them from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch

from regard import disk, spec
from regard.builder import CoreModel, build
from regard.errors import SettingError, did_you_mean
from regard.families import bert, gpt2, transformer
from regard.families import folder as folders

_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip

SPECS: dict[str, Callable[[], spec.Model]] = {
    "tiny": lambda: transformer.preset("tiny", 10000, 10000, share="all"),
    "small": lambda: transformer.preset("small", 8000, 8000, share="all"),
    "base": lambda: transformer.preset("base", 37000, 37000, share="all"),
    "gpt2": lambda: gpt2.preset("small", 50257, 1024, dropout=0.0),  # as nanoGPT trains it
    "gpt2-tiny": lambda: gpt2.preset("tiny", 500, 128),
    "llama-7b": lambda: folders.FAMILIES["llama"].to_spec(_LLAMA),
    "bert-base": lambda: bert.preset("base"),
    "bert-tiny": lambda: bert.preset("tiny", 500, 128),
}
IDS = folders.SpecialTokenIds(0, 1, 2, 3)  # pad, start, end, unknown


@dataclass(frozen=True)
class Measured:
    name: str
    spec: Any

    def build(self, device: torch.device | str = "cpu") -> CoreModel:
        torch.manual_seed(0)
        with torch.device(device):
            return build(self.spec).eval()

    def write(self, folder: Path) -> Path:
        """In Hugging Face's layout, with a tokenizer of made-up words, one for each row of the embedding."""
        framed = isinstance(self.spec, spec.EncoderDecoder)
        config = folders.describe(self.spec, IDS if framed else None, 1024)
        if not framed:
            config |= {"bos_token_id": IDS.start, "eos_token_id": IDS.end, "pad_token_id": IDS.pad}
        disk.write_json(folder / "config.json", config)
        folders.write_weights(folder / "model.safetensors", self.build(), self.spec, 1024)
        words = {f"w{i}": i for i in range(4, self.vocabulary)} | {
            "<pad>": 0,
            "<s>": 1,
            "</s>": 2,
            "<unk>": 3,
        }
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        made.add_special_tokens(["<pad>", "<s>", "</s>", "<unk>"])
        disk.write_file(
            folder / "tokenizer.json",
            folders.append_end_token(made.to_str(), "</s>") if framed else made.to_str(),
        )
        disk.write_json(
            folder / "tokenizer_config.json",
            folders.tokenizer_config("<pad>", "<s>", "</s>", "<unk>"),
        )
        return folder

    @property
    def vocabulary(self) -> int:
        match self.spec:
            case spec.EncoderDecoder(target=target):
                return target.vocabulary
            case spec.Decoder(tokens=tokens) | spec.Encoder(input=tokens):
                return tokens.vocabulary  # type: ignore[union-attr]
            case _:
                raise AssertionError(self.spec)


def measured(name: str) -> Measured:
    if name not in SPECS:
        raise SettingError(
            f"there is nothing to measure by the name {name!r}", did_you_mean(name, SPECS)
        )
    return Measured(name, SPECS[name]())
