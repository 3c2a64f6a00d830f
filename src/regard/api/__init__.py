"""The models a user holds."""

from __future__ import annotations

from regard.api.held import Held, Output, choose_device
from regard.api.opening import load, load_translator, load_writer, open_tokenizers
from regard.api.translator import Translator
from regard.api.writer import LanguageModel

__all__ = [
    "Held",
    "LanguageModel",
    "Output",
    "Translator",
    "choose_device",
    "load",
    "load_translator",
    "load_writer",
    "open_tokenizers",
]
