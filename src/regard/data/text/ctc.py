"""CTC labels: from the most likely token of each frame to text, and from text to labels.

Connectionist temporal classification: Graves et al., 2006.

Repeated tokens are merged, then blanks are removed: a blank between two equal tokens keeps both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.text.tokenizer_files import token_content
from regard.system.disk import read_json_object
from regard.system.errors import DataError

_UNKNOWN = "<unk>"
# The first of them, padding, is the blank; the last stands between words.
_SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", _UNKNOWN, "|")


@dataclass(frozen=True)
class CTCDecoder:
    """The vocabulary of a CTC model.

    `names` are tokens by id; `blank` is the id of the blank; `space` is the token between words;
    the `silent` tokens are never written; `lower` asks for lower case.
    """

    names: dict[int, str]  # id → token, mostly a letter
    blank: int  # id of ε in the paper
    space: str = "|"
    silent: frozenset[str] = frozenset({"<s>", "</s>"})
    lower: bool = False

    @classmethod
    def open(cls, folder: str | Path) -> CTCDecoder:
        """From vocab.json and tokenizer_config.json of a Wav2Vec2CTCTokenizer."""
        folder = Path(folder)
        vocabulary = read_json_object(folder / "vocab.json", DataError)
        settings = read_json_object(folder / "tokenizer_config.json", DataError)
        if not vocabulary:
            raise DataError(
                f"{folder} holds no vocab.json",
                "give a folder with the letters that the model hears",
            )
        # Models of several languages nest one vocabulary for each.
        if not all(isinstance(i, int) for i in vocabulary.values()):
            raise DataError(
                f"{folder}/vocab.json is not one vocabulary", "keep that of the language you want"
            )
        # Hugging Face's padding token is the blank.
        pad = _token(settings, "pad_token", "<pad>")
        if pad not in vocabulary:
            raise DataError(
                f"{folder}/vocab.json has no blank {pad!r}", "name the blank as pad_token"
            )
        silent = {_token(settings, "bos_token", "<s>"), _token(settings, "eos_token", "</s>")}
        return cls(
            names={i: name for name, i in vocabulary.items()},
            blank=vocabulary[pad],
            space=_token(settings, "word_delimiter_token", "|"),
            silent=frozenset(silent),
            lower=bool(settings.get("do_lower_case", False)),
        )

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> CTCDecoder:
        """The vocabulary of all characters of the texts, as fine-tuned Wav2Vec2 folders have it."""
        characters = {character for text in texts for character in text if character != " "}
        tokens = [*_SPECIAL_TOKENS, *sorted(characters - {"|"})]
        return cls(names=dict(enumerate(tokens)), blank=0)

    def labels(self, text: str, *, allow_unknown: bool = False) -> list[int]:
        """The labels of a transcript, one for each of its characters.

        A character that is not in the vocabulary is an error; with `allow_unknown` it is the
        unknown token.
        """
        ids = {name: i for i, name in self.names.items()}
        unknown = ids.get(_UNKNOWN)
        labels = []
        # Spaces at the ends and repeated ones are not heard.
        for character in " ".join(text.split()):
            label = ids.get(self.space if character == " " else character)
            if label is None and self.lower:
                label = ids.get(character.upper())  # as `text` turns it into lower case
            if label is None and allow_unknown:
                label = unknown
            # The word delimiter, written out, would come back as a space.
            if label is None or character == self.space:
                raise DataError(
                    f"the transcript {text!r} has a {character!r}, which the model cannot write",
                    f"correct it; there are: {' '.join(name for name in ids if len(name) == 1)}",
                )
            labels.append(label)
        return labels

    def files(self) -> dict[str, dict[str, Any]]:
        """The files of a Wav2Vec2CTCTokenizer: names and contents."""
        config: dict[str, Any] = {
            "tokenizer_class": "Wav2Vec2CTCTokenizer",
            "pad_token": self.names[self.blank],
            "word_delimiter_token": self.space,
            "do_lower_case": self.lower,
        }
        if self.silent:  # start and end token; which is which makes no difference here
            config["bos_token"] = max(self.silent)
            config["eos_token"] = min(self.silent)
        vocabulary = {name: i for i, name in self.names.items()}
        return {"vocab.json": vocabulary, "tokenizer_config.json": config}

    def frames(self, ids: Iterable[int]) -> list[int]:
        """The first frame of each letter that `text` writes, by the token ids of all frames."""
        frames = []
        frame = 0
        for i, repetitions in groupby(int(i) for i in ids):
            if i != self.blank and self.names.get(i, "") not in self.silent:
                frames.append(frame)
            frame += len(list(repetitions))
        return frames

    def words(self, ids: Sequence[int]) -> list[tuple[str, int, int]]:
        """The words that `text` writes: each with its first frame, and the one after its last."""
        spans: list[tuple[int, int]] = []
        begun = False
        for frame, i in enumerate(ids):
            name = self.names.get(i, "")
            if i != self.blank and name == self.space:
                begun = False
            elif i != self.blank and name not in self.silent:
                begin = spans.pop()[0] if begun else frame
                spans.append((begin, frame + 1))
                begun = True
        return [(self.text(ids[begin:end]), begin, end) for begin, end in spans]

    def text(self, ids: Iterable[int]) -> str:
        """The text of the token ids of all frames (greedy decoding)."""
        # B of Graves et al., Section 3.1: first merge repetitions, then drop blanks.
        merged = [i for i, _ in groupby(int(i) for i in ids)]
        tokens = [self.names.get(i, "") for i in merged if i != self.blank]
        spelled = "".join(
            " " if token == self.space else token for token in tokens if token not in self.silent
        )
        text = " ".join(spelled.split())
        return text.lower() if self.lower else text


def forced_alignment(log_p: NDArray[Any], labels: Sequence[int], blank: int) -> list[int]:
    """Where each label but the first begins, by the likeliest alignment of log p [T, V].

    The path of Graves et al. (Section 4.1), by Viterbi: labels with blanks between them. Half of
    the blanks between two labels are those of either.
    """
    path = [blank]
    for label in labels:
        path += [label, blank]
    count = len(path)
    # A blank may be left out between two labels that differ.
    skips = [i > 1 and path[i] not in (blank, path[i - 2]) for i in range(count)]
    scores = np.full(count, -np.inf)
    scores[:2] = log_p[0, path[:2]]
    steps = np.zeros((len(log_p), count), np.int64)  # back to the place in the path before
    for frame in range(1, len(log_p)):
        # From the same place, the one before, and over a blank.
        choices = np.full((3, count), -np.inf)
        choices[0] = scores
        choices[1, 1:] = scores[:-1]
        choices[2, 2:] = np.where(skips[2:], scores[:-2], -np.inf)
        steps[frame] = choices.argmax(axis=0)
        scores = choices.max(axis=0) + log_p[frame, path]
    # It ends in the last label, or in the blank behind it.
    place = count - 1 - int(scores[-2] > scores[-1])
    places = [place]
    for frame in range(len(log_p) - 1, 0, -1):
        place -= int(steps[frame, place])
        places.append(place)
    # Of the odd places of the path, which are labels, the first frame and the one after the last.
    numbers = np.array(places[::-1])
    begins = np.searchsorted(numbers, np.arange(1, count, 2), side="left")
    ends = np.searchsorted(numbers, np.arange(1, count, 2), side="right")
    return [int(middle) for middle in (begins[1:] + ends[:-1]) // 2]


def _token(settings: Mapping[str, Any], key: str, default: str) -> str:
    token = token_content(settings.get(key))
    return default if token is None else token
