"""The models a user holds."""

from __future__ import annotations

from regard.api.held import Held, Output, choose_device
from regard.api.opening import load, load_translator, open_tokenizers
from regard.api.translator import Translator

__all__ = ["Held", "Output", "Translator", "choose_device", "load", "load_translator", "open_tokenizers"]
