"""Published formats: what their records are, which split each belongs to, and archives."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import regard
from regard.data.labelled import rated_texts, tagged_words
from regard.data.text_files import lines, pairs
from regard.evaluation.metrics.reference import alternatives, each_alternative
from regard.system.errors import DataError, SettingError

DICTIONARY = """'bout B AW1 T
either IY1 DH ER0
either(2) AY1 DH ER0
aalborg AO1 L B AO0 R G # place, danish
"""
COMMANDS = "IN: jump twice OUT: I_JUMP I_JUMP\nIN: walk OUT: I_WALK\n"
PROTEINS = {
    "sequences.fasta": ">a\nMK\nV\n>b\nMLA\n>c\nAA\n",
    "mask.fasta": ">a\n011\n>b\n111\n>c\n11\n",
    "labels.fasta": (
        ">a SET=train VALIDATION=False\nCHH\n>b SET=train VALIDATION=True\nEEC\n"
        ">c SET=test VALIDATION=False\nHC\n"
    ),
}


def words(count: int) -> str:
    """A dictionary of many words, whose phonemes are those of their letters."""
    letters = "abcdefghij"
    names = [
        "".join(letters[int(digit)] for digit in f"{i * 7919 % 10**5:05}") for i in range(count)
    ]
    return "".join(f"{name} {' '.join(name.upper())}\n" for name in names)


def tar(path: Path, members: Mapping[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def test_a_dictionary_is_pairs_of_letters_and_pronunciations(tmp_path: Path) -> None:
    file = tmp_path / "words.dict.gz"
    file.write_bytes(gzip.compress(DICTIONARY.encode()))
    read = dict(pairs(file))
    assert read["' b o u t"] == "B AW1 T"
    assert read["a a l b o r g"] == "AO1 L B AO0 R G"
    assert alternatives(read["e i t h e r"]) == ("IY1 DH ER0", "AY1 DH ER0")
    # Each of them is learnt.
    assert len(list(each_alternative(pairs(file)))) == 4


def test_the_splits_of_a_dictionary_are_parts_of_it(tmp_path: Path) -> None:
    file = tmp_path / "words.dict"
    file.write_text(words(3000))
    splits = {name: {s for s, _ in pairs(f"{file}:{name}")} for name in ("train", "valid", "test")}
    assert set.union(*splits.values()) == {source for source, _ in pairs(file)}
    assert sum(map(len, splits.values())) == 3000
    assert 250 < len(splits["test"]) < 350
    assert 10 < len(splits["valid"]) < 60


def test_references_come_back_from_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"source": "e", "target": ["IY1", "EH1"]}) + "\n")
    [(source, target)] = pairs(file)
    assert (source, target, alternatives(target)) == ("e", "IY1", ("IY1", "EH1"))


@pytest.mark.parametrize("suffix", ["tar.gz", "zip"])
def test_an_archive_is_a_folder(suffix: str, tmp_path: Path) -> None:
    archive = tmp_path / f"scan.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("inner/tasks.txt", COMMANDS)
    else:
        tar(archive, {"inner/tasks.txt": COMMANDS})
    member = f"{archive}/inner/tasks.txt"
    assert list(lines(member)) == COMMANDS.splitlines()
    assert list(pairs(member)) == [("jump twice", "I_JUMP I_JUMP"), ("walk", "I_WALK")]
    with pytest.raises(DataError, match="cannot read"):
        list(lines(f"{archive}/inner/none.txt"))


def test_residues_have_the_labels_that_the_mask_leaves(tmp_path: Path) -> None:
    for name, text in PROTEINS.items():
        (tmp_path / name).write_text(text)
    file = f"{tmp_path}/labels.fasta"
    [first] = tagged_words(f"{file}:train")
    assert (first.tokens, first.tags) == (["M", "K", "V"], ["", "H", "H"])
    assert [one.tokens for one in tagged_words(f"{file}:valid")] == [["M", "L", "A"]]
    assert [one.tags for one in tagged_words(f"{file}:test")] == [["H", "C"]]
    (tmp_path / "mask.fasta").write_text(">a\n01\n>b\n111\n>c\n11\n")
    with pytest.raises(DataError, match="2 marks"):
        list(tagged_words(file))


def test_variants_have_their_score(tmp_path: Path) -> None:
    file = tmp_path / "variants.fasta"
    file.write_text(">0|name_M1K|1.5\nKK\nV\n>1|name_K2V|-0.25\nMVV\n")
    assert [(one.text, one.score) for one in rated_texts(file)] == [
        ("K K V", 1.5),
        ("M V V", -0.25),
    ]
    file.write_text("MK\n")
    with pytest.raises(DataError, match="no FASTA"):
        list(rated_texts(file))


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("words.dict", "alone\n", DataError),
        ("tasks.txt", COMMANDS + "jump\n", DataError),
        ("plain.txt", "no command\n", SettingError),
    ],
)
def test_what_is_not_of_the_format_is_refused(
    name: str, text: str, error: type[Exception], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(error):
        list(pairs(tmp_path / name))


@pytest.mark.thorough
def test_letters_are_pronounced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packaged recipe, small: from the file to scores, and to the same by `evaluate`."""
    file = tmp_path / "cmudict" / "cmudict.dict.gz"
    file.parent.mkdir()
    file.write_bytes(gzip.compress((words(400) + DICTIONARY).encode()))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    result = regard.train(
        "cmudict",
        layers=1,
        d_ff=64,
        steps=100,
        warmup_steps=10,
        batch_tokens=512,
        learning_rate=0.01,
        beam=1,
        validate_every=50,
        device="cpu",
        threads=1,
        out=tmp_path / "run",
    )
    score = result.scores["test"]
    assert score.per == score.per_unstressed < score.word_error <= 100
    again = regard.evaluate(result.folder, f"{file}:test")
    assert again.task == "pronounce"
    assert again["word_error"] == pytest.approx(score.word_error)


@pytest.mark.thorough
def test_residues_are_tagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packaged recipe, small: residues that the mask excludes have no part in its scores."""
    names = [f"p{i}" for i in range(60)]
    texts = {name: "MKVA" * 4 + "AK" * (i % 5) for i, name in enumerate(names)}
    states = {name: text.translate(str.maketrans("MKVA", "CHEC")) for name, text in texts.items()}
    splits = {name: ("train", "test")[i % 6 == 0] for i, name in enumerate(names)}
    folder = tmp_path / "proteins"
    folder.mkdir()
    with zipfile.ZipFile(folder / "secondary_structure.zip", "w") as archive:
        for file, lines_of in {
            "sequences": [f">{name}\n{texts[name]}\n" for name in names],
            "mask": [f">{name}\n0{'1' * (len(texts[name]) - 1)}\n" for name in names],
            "sampled": [
                f">{name} SET={splits[name]} VALIDATION={i % 6 == 1}\n{states[name]}\n"
                for i, name in enumerate(names)
            ],
        }.items():
            archive.writestr(f"splits/{file}.fasta", "".join(lines_of))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    result = regard.train(
        "secondary_structure",
        layers=1,
        steps=40,
        warmup_steps=5,
        learning_rate=0.01,
        batch_tokens=256,
        validate_every=20,
        device="cpu",
        threads=1,
        out=tmp_path / "run",
    )
    score = result.scores["test"]
    assert score.accuracy == 100.0
    assert score.examples == sum(len(texts[name]) - 1 for name in names[::6])
    data = f"{folder}/secondary_structure.zip/splits/sampled.fasta:test"
    assert regard.evaluate(result.folder, data)["tag_accuracy"] == 100.0
