"""Readers of published formats: pronouncing dictionaries, SCAN's commands, FASTA, emoji.

Each gives records by the names that the other formats have (`text_files`). A file of several splits
has them as FILE:train, FILE:valid and FILE:test: those that its authors named, else a tenth of the
keys is the test and a hundredth validates, by a hash, so that equal words stand on one side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from regard.data.file_access import split_of_file
from regard.data.generated.algorithmic_tasks import digest
from regard.system.errors import DataError

Record = tuple[str, dict[str, Any]]  # where it stands, and its values by name
Lines = Callable[[str], Iterable[str]]  # of a file
RESIDUES = "sequences.fasta"  # stands beside a FASTA file of labels
MASK = "mask.fasta"  # 1 where a residue has a label
_VARIANT = re.compile(r"\(\d+\)$")  # "either(2)": another pronunciation
_COMMAND = re.compile(r"IN: (?P<source>.*) OUT: (?P<target>.*)")


def split_by_hash(key: str) -> str:
    """The split of a key in a file whose authors name none."""
    percent = digest(key) % 100
    if percent < 10:
        return "test"
    return "train" if percent > 10 else "valid"


def records(file: str, file_format: str, lines: Lines) -> Iterator[Record]:
    """The records of a file, or of one split of it; `lines` reads a file."""
    path, split = split_of_file(file)
    for where, of_split, record in FORMATS[file_format](path, lines):
        if split in (None, of_split):
            yield where, record


# --- letters and phonemes -------------------------------------------------------------------------


def pronunciations(path: str, lines: Lines) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """CMUdict: a word a line, then its phonemes; the word's letters are the source.

    Other pronunciations of a word follow it as `word(2)`; what stands behind # is a comment.
    """

    def entries() -> Iterator[tuple[str, str, str]]:
        for number, line in enumerate(lines(path), 1):
            word, _, phonemes = line.partition("#")[0].strip().partition(" ")
            where = f"{path}, line {number}"
            if not phonemes:
                raise DataError(f"{where} has no phonemes: {line!r}", "write: word P1 P2 …")
            yield where, _VARIANT.sub("", word), phonemes.strip()

    for word, group in groupby(entries(), key=lambda entry: entry[1]):
        same = list(group)
        target = [phonemes for _, _, phonemes in same]
        yield same[0][0], split_by_hash(word), {"source": " ".join(word), "target": target}


# --- commands and actions -------------------------------------------------------------------------


def is_command(line: str) -> bool:
    """Whether a line is one of SCAN's."""
    return _COMMAND.fullmatch(line) is not None


def command(line: str) -> tuple[str, str]:
    """A command of SCAN and its actions (Lake and Baroni 2018), written `IN: … OUT: …`."""
    match = _COMMAND.fullmatch(line)
    if match is None:
        raise DataError(f"{line!r} is no command", "write every line as the first: IN: … OUT: …")
    return match["source"], match["target"]


# --- proteins -------------------------------------------------------------------------------------


def fasta(path: str, lines: Lines) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """FASTA: amino acids, one a word. A number behind the header's last | is their score.

    A file whose headers have SET= holds a label for each residue of `sequences.fasta` beside it
    (FLIP, Dallago et al. 2021); a residue that `mask.fasta` excludes has the tag "", which is none.
    """
    others: dict[str, dict[str, str]] = {}
    for where, header, sequence in _sequences(path, lines):
        name, *about = header.split()
        marks = dict(one.split("=", 1) for one in about if "=" in one)
        if "SET" not in marks:
            # Who asks for scores refuses a last word that is no number.
            score = header.rpartition("|")[2]
            yield where, split_by_hash(header), {"text": " ".join(sequence), "score": score}
            continue
        if not others:
            folder = Path(path).parent
            others = {
                file: {
                    key.split()[0]: text for _, key, text in _sequences(str(folder / file), lines)
                }
                for file in (RESIDUES, MASK)
            }
        residues = others[RESIDUES].get(name, "")
        mask = others[MASK].get(name, "")
        if not len(residues) == len(mask) == len(sequence):
            raise DataError(
                f"{where}: {name} has {len(residues)} residues, {len(sequence)} labels and "
                f"{len(mask)} marks",
                f"give {RESIDUES} and {MASK} with as many for each name",
            )
        tags = [tag if mark == "1" else "" for tag, mark in zip(sequence, mask, strict=True)]
        split = marks["SET"]
        if marks.get("VALIDATION") == "True":
            split = "valid"
        yield where, split, {"tokens": list(residues), "tags": tags}


def _sequences(path: str, lines: Lines) -> Iterator[tuple[str, str, str]]:
    """Where each record stands, its header, and its sequence, which may be on several lines."""
    where = header = ""
    parts: list[str] = []
    for number, line in enumerate(lines(path), 1):
        if line.startswith(">"):
            if header:
                yield where, header, "".join(parts)
            where = f"{path}, line {number}"
            header = line[1:].strip()
            parts = []
        elif line.strip() and not header:
            raise DataError(f"{path} is no FASTA: it begins with {line!r}", "begin with >NAME")
        else:
            parts.append(line.strip())
    if header:
        yield where, header, "".join(parts)


# --- emoji ---------------------------------------------------------------------------------------

EMOJI = "names.json"  # of emojilib: a character → its name, and keywords
_TONES = {
    0x1F3FB: "light skin",
    0x1F3FC: "medium-light skin",
    0x1F3FD: "medium skin",
    0x1F3FE: "medium-dark skin",
    0x1F3FF: "dark skin",
}
_EMOJI_STYLE = 0xFE0F  # asks for a picture in place of a letter; not in all names of files


def emoji(file: str) -> Iterator[tuple[Path, str]]:
    """The pictures `images/CODE-CODE.png` beside a `names.json`, and the name of each.

    One with skin tones is named by the one without and its tones, and is of the same split.
    """
    path, split = split_of_file(file)
    names = {
        _without_tones(map(ord, characters)): about[0].replace("_", " ")
        for characters, about in json.loads(Path(path).read_text(encoding="utf-8")).items()
    }
    for picture in sorted((Path(path).parent / "images").glob("*.png")):
        codes = [int(code, 16) for code in picture.stem.split("-")]
        name = names.get(_without_tones(codes))
        # Letters of flags, hair and the like have no name of their own.
        if name is not None and split in (None, split_by_hash(name)):
            tones = [_TONES[code] for code in codes if code in _TONES]
            yield picture, ", ".join([name, *tones])


def _without_tones(codes: Iterable[int]) -> tuple[int, ...]:
    return tuple(code for code in codes if code not in _TONES and code != _EMOJI_STYLE)


FORMATS = {"dict": pronunciations, "fasta": fasta}  # as `file_access.FORMATS` names them
