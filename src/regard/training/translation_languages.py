"""Which languages a served translator reads and writes, by what its folder says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from regard.models import Model
from regard.system.errors import SettingError
from regard.training.run_evaluation import run_settings

BUILTIN = ("en", "de")  # the language pair that the package generates
# Code, then English name.
_NAMES = """
ar Arabic, bg Bulgarian, bn Bengali, ca Catalan, cs Czech, da Danish, de German, el Greek,
en English, eo Esperanto, es Spanish, et Estonian, eu Basque, fa Persian, fi Finnish, fr French,
ga Irish, gl Galician, he Hebrew, hi Hindi, hu Hungarian, id Indonesian, it Italian, ja Japanese,
ko Korean, lt Lithuanian, lv Latvian, ms Malay, nb Norwegian, nl Dutch, pl Polish, pt Portuguese,
ro Romanian, ru Russian, sk Slovak, sl Slovenian, sq Albanian, sr Serbian, sv Swedish, th Thai,
tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu, vi Vietnamese, zh Chinese"""
_PAIR = re.compile(r"([a-z]{2,3})[-_]([a-z]{2,3})")
_SUFFIX = re.compile(r"\.([a-z]{2,3})(?:\.gz|\.zst|\.txt)*$")


@dataclass(frozen=True)
class Pair:
    """A source and a target language, as codes of ISO 639."""

    source: str
    target: str


def parse_pair(text: str) -> Pair:
    """A pair of languages such as en-de."""
    match = _PAIR.fullmatch(text)
    if match is None:
        raise SettingError(f"{text!r} is no pair of languages", "write it as en-de")
    return Pair(match[1], match[2])


def language_name(code: str) -> str:
    """The English name of a language; of a rare one, its code."""
    names = dict(pair.split() for pair in _NAMES.split(","))
    return names.get(code, code)


def pair_of(folder: Path) -> Pair | None:
    """The languages of the translator in a run folder; None where nothing says them."""
    recipe = run_settings(folder).recipe
    if recipe is None or recipe.objective != "translate":
        return None
    data = recipe.data
    if data.languages is not None and _PAIR.fullmatch(data.languages):
        return parse_pair(data.languages)
    if data.source is None and data.pairs is None:
        return Pair(*BUILTIN)
    suffixes = [_SUFFIX.search(path or "") for path in (data.source, data.target)]
    if None in suffixes:
        return None
    return Pair(*(match[1] for match in suffixes if match is not None))


def known_share(model: Model, text: str) -> float:
    """How much of a text consists of tokens that the training of a model has seen, from 0 to 1."""
    tokenizer = model.input_tokenizer
    ids = tokenizer.encode(text)
    return 1 - sum(model.coverage.unseen(tokenizer, ids)) / max(1, len(ids))
