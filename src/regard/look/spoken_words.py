"""The words of a recording with their times, and subtitles made of them.

The times are those of a CTC model's frames, or of the cross-attention of an encoder–decoder, whose
tokens follow each other in the recording.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from regard.data.text.ctc import CTCDecoder
from regard.look.alignments import monotonic_spans
from regard.look.result import Array

_CUE_SECONDS = 7.0  # a subtitle is shown for so long at most
_CUE_CHARACTERS = 84  # two lines


@dataclass(frozen=True)
class SpokenWord:
    """A word, when it was spoken (in seconds), its tokens and their mean log-probability."""

    text: str
    start: float
    end: float
    ids: tuple[int, ...] = ()
    logprob: float = 0.0


def words_of_frames(decoder: CTCDecoder, ids: Sequence[int], seconds: float) -> list[SpokenWord]:
    """The words of a CTC model's frames, which last so many seconds together."""
    frame = seconds / max(1, len(ids))
    return [SpokenWord(text, a * frame, b * frame) for text, a, b in decoder.words(ids)]


def words_of_attention(
    weights: Array,
    ids: Sequence[int],
    pieces: Sequence[str],
    logprobs: Sequence[float],
    window: tuple[float, float],
    end: float,
) -> list[SpokenWord]:
    """The words of tokens by their cross-attention [tokens, frames] to a window of a recording.

    `pieces` are the texts of the tokens. The window begins and ends at these seconds; the recording
    may `end` inside it.
    """
    if not ids:
        return []
    begin, window_end = window
    frame = (window_end - begin) / weights.shape[1]
    # What follows the end of the recording in its window is silence that nobody has spoken.
    frames = max(1, min(weights.shape[1], math.ceil((end - begin) / frame)))
    spans = monotonic_spans(weights[:, :frames])
    words: list[SpokenWord] = []
    for numbers in _by_words(pieces):
        first, last = numbers[0], numbers[-1]
        words.append(
            SpokenWord(
                "".join(pieces[i] for i in numbers).strip(),
                begin + frame * spans[first][0],
                min(begin + frame * spans[last][1], end),
                tuple(ids[i] for i in numbers),
                sum(logprobs[i] for i in numbers) / len(numbers),
            )
        )
    return words


def _by_words(pieces: Sequence[str]) -> list[list[int]]:
    """The numbers of the tokens of each word, by the texts of all tokens."""
    words: list[list[int]] = []
    ends = True
    for i, piece in enumerate(pieces):
        if piece.strip() and (ends or piece[0].isspace()):
            words.append([])
        if words:
            words[-1].append(i)
        ends = piece[-1:].isspace() or (ends and not piece)
    return words


# ------------------------------------------------------------------ subtitles


def cues(words: Sequence[SpokenWord]) -> list[list[SpokenWord]]:
    """Words as subtitles: to the end of a sentence, or as long as one can be read."""
    groups: list[list[SpokenWord]] = []
    for word in words:
        last = groups[-1] if groups else []
        characters = sum(len(one.text) + 1 for one in last) + len(word.text)
        if (
            not last
            or last[-1].text.endswith((".", "?", "!"))
            or characters > _CUE_CHARACTERS
            or word.end - last[0].start > _CUE_SECONDS
        ):
            groups.append([])
        groups[-1].append(word)
    return groups


def line(cue: Sequence[SpokenWord]) -> str:
    """The text of a subtitle."""
    return " ".join(word.text for word in cue)


def subtitles(words: Sequence[SpokenWord], form: Literal["srt", "vtt"]) -> str:
    """A file of subtitles: SubRip's, which numbers them, or WebVTT's."""
    point = "," if form == "srt" else "."
    blocks = [] if form == "srt" else ["WEBVTT\n"]
    for number, cue in enumerate(cues(words), 1):
        times = f"{_time(cue[0].start, point)} --> {_time(cue[-1].end, point)}"
        head = f"{number}\n" if form == "srt" else ""
        blocks.append(f"{head}{times}\n{line(cue)}\n")
    return "\n".join(blocks)


def _time(seconds: float, point: str) -> str:
    minutes, rest = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"
