"""The times of words, by attention and by frames, and the subtitles that are made of them."""

from __future__ import annotations

import numpy as np

from regard.data.text.ctc import CTCDecoder
from regard.look.spoken_words import (
    SpokenWord,
    cues,
    line,
    subtitles,
    words_of_attention,
    words_of_frames,
)


def test_words_of_attention_are_where_their_tokens_look() -> None:
    """Four tokens, three words, on ten frames of a window that begins at 30 s."""
    weights = np.full((4, 10), 0.01)
    for token, (begin, end) in enumerate([(0, 2), (2, 4), (4, 6), (6, 8)]):
        weights[token, begin:end] = 1.0
    pieces = [" the", " ca", "t", " sat"]
    logprobs = [-1.0, -2.0, -4.0, -1.0]
    words = words_of_attention(weights, (5, 6, 7, 8), pieces, logprobs, (30.0, 40.0), 38.0)
    assert [one.text for one in words] == ["the", "cat", "sat"]
    # Neighbours may share a frame.
    np.testing.assert_allclose([one.start for one in words], [30, 32, 36], atol=1)
    np.testing.assert_allclose([one.end for one in words], [32, 36, 38], atol=1)
    assert words[-1].end == 38
    assert (words[1].ids, words[1].logprob) == ((6, 7), -3.0)
    assert words_of_attention(weights, (), [], [], (0.0, 10.0), 8.0) == []


def test_words_of_frames() -> None:
    decoder = CTCDecoder({0: "<pad>", 1: "a", 2: "b", 3: "|"}, 0)
    words = words_of_frames(decoder, [1, 1, 0, 2, 3, 3, 1, 0], 4.0)
    assert [(one.text, one.start, one.end) for one in words] == [("ab", 0, 2), ("a", 3, 3.5)]


def test_subtitles_end_with_sentences_and_stay_short() -> None:
    words = [SpokenWord(f"word{i}" + "." * (i % 5 == 4), i * 0.5, i * 0.5 + 0.4) for i in range(60)]
    groups = cues(words)
    assert [word for cue in groups for word in cue] == words
    assert all(len(line(cue)) <= 84 and cue[-1].end - cue[0].start <= 7 for cue in groups)
    assert all(cue[-1].text.endswith(".") for cue in groups)
    srt = subtitles(words[:5], "srt")
    assert srt == "1\n00:00:00,000 --> 00:00:02,400\nword0 word1 word2 word3 word4.\n"
    vtt = subtitles([SpokenWord("late", 3661.5, 3662.0)], "vtt")
    assert vtt == "WEBVTT\n\n01:01:01.500 --> 01:01:02.000\nlate\n"
