"""The models a user holds."""

from __future__ import annotations

from regard.api.held import Held, Output, choose_device
from regard.api.listener import Listener, Speller
from regard.api.opening import load, load_translator, load_writer, open_tokenizers
from regard.api.pair import Matcher
from regard.api.reader import Answer, Filling, Reader, Suspect, Tagged
from regard.api.seer import Seer
from regard.api.translator import Translator
from regard.api.writer import LanguageModel

__all__ = [
    "Answer", "Filling", "Held", "LanguageModel", "Listener", "Matcher", "Output", "Reader", "Seer", "Speller", "Suspect",
    "Tagged", "Translator", "choose_device", "load", "load_translator", "load_writer", "open_tokenizers",
]  # fmt: skip
