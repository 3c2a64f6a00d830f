"""CoNLL-U: sentences with their dependency parse, as Universal Dependencies writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from regard.data.generated.builtin import Link, Sentence
from regard.system.errors import DataError

# Columns of https://universaldependencies.org/format.html
_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_ROOT = "0"


def read_conllu(path: str | Path) -> list[Sentence]:
    """The sentences of a file, with a link from each word to its head.

    A link's kind is "RELATION-head", without the subtype of the relation (nsubj:pass is nsubj).
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}", "give a CoNLL-U file") from None
    sentences = list(parse_conllu(text.splitlines()))
    if not sentences:
        raise DataError(f"{path} has no sentences", "give a CoNLL-U file")
    return sentences


def parse_conllu(lines: Iterable[str]) -> Iterator[Sentence]:
    """Sentences from the lines of a CoNLL-U file: a blank line ends one."""
    rows: list[dict[str, str]] = []
    for number, line in enumerate([*lines, ""], start=1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if rows:
                yield _sentence(rows)
            rows = []
            continue
        columns = line.split("\t")
        if len(columns) != len(_COLUMNS):
            raise DataError(
                f"line {number} has {len(columns)} columns instead of {len(_COLUMNS)}",
                "separate the columns of CoNLL-U by tabs",
            )
        # 3-4 is a multiword token, 3.1 an empty node: neither is a word of the tree.
        if columns[0].isdigit():
            rows.append(dict(zip(_COLUMNS, columns, strict=True)))


def _sentence(rows: list[dict[str, str]]) -> Sentence:
    index = {row["id"]: position for position, row in enumerate(rows)}
    links = []
    for position, row in enumerate(rows):
        head = row["head"]
        if head == _ROOT:
            continue
        if head not in index:
            raise DataError(
                f"{row['form']!r} has the head {head}, which is not a word of its sentence",
                "correct the seventh column",
            )
        relation = row["deprel"].partition(":")[0]
        links.append(Link(f"{relation}-head", position, index[head]))
    # Forms may contain spaces in some treebanks; a word has none here.
    text = " ".join(row["form"].replace(" ", "_") for row in rows)
    return Sentence(text, text, tuple(links))


def write_conllu(sentences: Iterable[Sentence]) -> Iterator[str]:
    """The lines of a CoNLL-U file: each word with the first of its links as head and relation."""
    for sentence in sentences:
        words = sentence.source.split()
        yield f"# text = {sentence.source}"
        for position, word in enumerate(words):
            link = next((link for link in sentence.links if link.start == position), None)
            head = _ROOT if link is None else str(link.end + 1)
            relation = "root" if link is None else link.kind.partition("-")[0]
            columns = [str(position + 1), word, *["_"] * 4, head, relation, "_", "_"]
            yield "\t".join(columns)
        yield ""
