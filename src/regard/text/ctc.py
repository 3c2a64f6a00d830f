"""From scores of letters in time to text: what is heard twice in a row is one letter, and the blank stands between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from regard.disk import read_json_object
from regard.errors import DataError
from regard.text.tokenizer_files import token_content


@dataclass(frozen=True)
class CTCDecoder:
    """`names` by id; `blank` is what stands for no letter, `space` what stands between words; `silent` are never written."""

    names: dict[int, str]
    blank: int
    space: str = "|"
    silent: frozenset[str] = frozenset({"<s>", "</s>"})
    lower: bool = False

    @classmethod
    def open(cls, folder: str | Path) -> CTCDecoder:
        """vocab.json and tokenizer_config.json, as a folder for connectionist temporal classification holds them."""
        folder = Path(folder)
        vocabulary, settings = (
            read_json_object(folder / "vocab.json", DataError),
            read_json_object(folder / "tokenizer_config.json", DataError),
        )
        if not vocabulary:
            raise DataError(
                f"{folder} holds no vocab.json",
                "give a folder with the letters that the model hears",
            )
        if not all(isinstance(i, int) for i in vocabulary.values()):
            raise DataError(
                f"{folder}/vocab.json is not one vocabulary", "keep that of the language you want"
            )
        pad = _token(settings, "pad_token", "<pad>")
        if pad not in vocabulary:
            raise DataError(
                f"{folder}/vocab.json has no blank {pad!r}", "name the blank as pad_token"
            )
        silent = {_token(settings, "bos_token", "<s>"), _token(settings, "eos_token", "</s>")}
        return cls(
            {i: name for name, i in vocabulary.items()},
            vocabulary[pad],
            _token(settings, "word_delimiter_token", "|"),
            frozenset(silent),
            bool(settings.get("do_lower_case", False)),
        )

    def text(self, ids: Iterable[int]) -> str:
        heard = [self.names.get(i, "") for i, _ in groupby(int(i) for i in ids) if i != self.blank]
        text = "".join(
            " " if name == self.space else name for name in heard if name not in self.silent
        )
        text = " ".join(text.split())
        return text.lower() if self.lower else text


def _token(settings: dict[str, Any], key: str, usual: str) -> str:
    said = token_content(settings.get(key))
    return usual if said is None else said
