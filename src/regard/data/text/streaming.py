"""Streaming decode: the text of token ids that arrive one by one."""

from __future__ import annotations

from collections.abc import Sequence

from regard.data.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # what the bytes of an incomplete UTF-8 character decode to
LONGEST_CHARACTER = 6  # tokens; no character is spelled by more of them


class StreamingDecoder:
    """Decodes a stream of token ids into pieces of text that hold complete characters only.

    `put` returns the text that is certain after more tokens, `end` what is left at the end.
    Several tokens may spell one character, and a token's text may depend on the token before it
    (spaces), so tokens are always decoded together with their neighbours. The pieces together are
    the text of all ids after the prompt, or what comes before the first of the `stops`.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self.ids = list(prompt)
        self.emitted = len(self.ids)  # ids whose text has been returned
        self.window_start = max(0, self.emitted - LONGEST_CHARACTER)  # where decoding begins
        self.stops = stops
        self.stopped = False
        self.held = ""  # decoded text that may be the beginning of a stop

    def put(self, *tokens: int) -> str:
        """More tokens: the text that has become certain, often of these."""
        self.ids += map(int, tokens)
        return self._before_stops(self._new_text(complete=False))

    def end(self) -> str:
        """No more tokens: the rest of the text, even if it stops inside a character."""
        text = self._before_stops(self._new_text(complete=True))
        return text if self.stopped else text + self.held

    def _before_stops(self, text: str) -> str:
        """What is certain to come before the first stop, after one more piece of text."""
        if self.stopped:
            return ""
        text = self.held + text
        starts = [text.find(stop) for stop in self.stops if stop in text]
        self.stopped = bool(starts)
        begun = (n for stop in self.stops for n in range(len(stop)) if text.endswith(stop[:n]))
        end = min(starts, default=len(text) - max(begun, default=0))
        self.held = text[end:]
        return text[:end]

    def _new_text(self, complete: bool) -> str:
        emitted_text = self.tokenizer.decode(self.ids[self.window_start : self.emitted])
        text = self.tokenizer.decode(self.ids[self.window_start :])
        if not complete and text.endswith(REPLACEMENT):
            return ""  # the next token may complete the character
        new_text = text[len(emitted_text) :]
        # The window moves on to the last piece, so that decoding stays short.
        if new_text:
            self.window_start = self.emitted
        self.emitted = len(self.ids)
        return new_text
