"""CoNLL-U: words and heads come back as links; what is no CoNLL-U is refused."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from regard.data.conllu import parse_conllu, read_conllu, write_conllu
from regard.data.generated import builtin
from regard.data.generated.builtin import Link
from regard.system.errors import DataError

TEXT = """\
# sent_id = 1
# text = They don't see it.
1\tThey\tthey\tPRON\t_\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
4\tsee\tsee\tVERB\t_\t_\t0\troot\t_\t_
5\tit\tit\tPRON\t_\t_\t4\tobj:indirect\t_\t_
5.1\tnothing\t_\t_\t_\t_\t_\t_\t_\t_

1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_
"""


def test_words_are_linked_with_their_heads(tmp_path: Path) -> None:
    file = tmp_path / "text.conllu"
    file.write_text(TEXT, encoding="utf-8")
    first, second = read_conllu(file)
    # Multiword tokens and empty nodes are no words; subtypes of relations are left out.
    assert first.source == "They do n't see it"
    assert first.links == (
        Link("nsubj-head", 0, 3),
        Link("aux-head", 1, 3),
        Link("advmod-head", 2, 3),
        Link("obj-head", 4, 3),
    )
    assert second.source == "Go"
    assert second.links == ()


def test_the_built_in_language_comes_back() -> None:
    sentences = list(islice(builtin.sentences("test"), 50))
    again = list(parse_conllu(write_conllu(sentences)))
    assert [one.source for one in again] == [one.source for one in sentences]
    for sentence, copy in zip(sentences, again, strict=True):
        edges = {(link.start, link.end) for link in sentence.links}
        assert {(link.start, link.end) for link in copy.links} <= edges
        # Each word has one head in CoNLL-U: the first of its links.
        assert {link.start for link in copy.links} == {link.start for link in sentence.links}


def test_what_is_no_conllu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1 has 1 columns"):
        list(parse_conllu(["The dog barks."]))
    with pytest.raises(DataError, match="not a word of its sentence"):
        list(parse_conllu(["\t".join(["1", "a", *["_"] * 4, "7", "det", "_", "_"])]))
    empty = tmp_path / "empty.conllu"
    empty.write_text("# nothing\n")
    with pytest.raises(DataError, match="no sentences"):
        read_conllu(empty)
    with pytest.raises(DataError, match="cannot be read"):
        read_conllu(tmp_path / "missing.conllu")
