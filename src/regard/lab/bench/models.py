"""The models that are benchmarked: random weights from one seed, in folders that peers open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch

from regard import spec
from regard.builder import build
from regard.families import folder as folders
from regard.families.presets import preset
from regard.system import disk
from regard.system.errors import SettingError, did_you_mean
from regard.wirings.core_model import CoreModel

SPECS: dict[str, Callable[[], spec.Model]] = {
    "tiny": lambda: preset("transformer:tiny", 10_000),
    "small": lambda: preset("transformer:small", 8000),
    "base": lambda: preset("transformer:base", 37_000),
    "gpt2": lambda: preset("gpt2", 50_257, 1024, dropout=0.0),  # as nanoGPT trains it
    "gpt2-tiny": lambda: preset("gpt2:tiny", 500, 128),
    "llama-7b": lambda: preset("llama:7b", 32_000, 2048),
    "bert-base": lambda: preset("bert:base", 30_522, 512),
    "bert-tiny": lambda: preset("bert:tiny", 500, 128),
}
IDS = folders.SpecialTokenIds(0, 1, 2, 3)  # pad, start, end, unknown
SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<unk>"]
MAX_LENGTH = 1024  # positions that a written folder has


@dataclass(frozen=True)
class BenchmarkModel:
    """A model of `SPECS`, which can be built here or written for others."""

    name: str
    spec: Any

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(self.spec.is_encoder_decoder)

    @property
    def vocabulary(self) -> int:
        return int(self.spec.vocab_size)

    def build(self, device: torch.device | str = "cpu") -> CoreModel:
        torch.manual_seed(0)  # the same weights in every process
        with torch.device(device):
            return build(self.spec).eval()

    def write(self, folder: Path) -> Path:
        """Writes the model in Hugging Face's layout, with a tokenizer of made-up words."""
        ids = IDS if self.is_encoder_decoder else None
        config = folders.describe(self.spec, ids, MAX_LENGTH)
        if not self.is_encoder_decoder:
            config |= {"bos_token_id": IDS.start, "eos_token_id": IDS.end, "pad_token_id": IDS.pad}
        disk.write_json(folder / "config.json", config)
        folders.write_weights(folder / "model.safetensors", self.build(), self.spec, MAX_LENGTH)
        tokenizer = self._tokenizer().to_str()
        if self.is_encoder_decoder:  # sources end with the end token
            tokenizer = folders.append_end_token(tokenizer, "</s>")
        disk.write_file(folder / "tokenizer.json", tokenizer)
        tokenizer_config = folders.tokenizer_config(*SPECIAL_TOKENS)
        disk.write_json(folder / "tokenizer_config.json", tokenizer_config)
        return folder

    def _tokenizer(self) -> tokenizers.Tokenizer:
        """One word, w4 for example, for each row of the embedding."""
        words = {f"w{i}": i for i in range(4, self.vocabulary)}
        words |= {token: i for i, token in enumerate(SPECIAL_TOKENS)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens(SPECIAL_TOKENS)
        return tokenizer


def benchmark_model(name: str) -> BenchmarkModel:
    if name not in SPECS:
        raise SettingError(f"unknown benchmark model {name!r}", did_you_mean(name, SPECS))
    return BenchmarkModel(name, SPECS[name]())
