"""SentencePiece files opened without its library give the ids that its library gives, numbered as
each family does.
"""

from __future__ import annotations

import io
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from regard.data.generated import builtin
from regard.data.text.sentencepiece import read_sentencepiece
from regard.data.text.tokenizer_files import (
    open_backend,
    open_encoder_tokenizer,
    open_language_model_tokenizer,
    open_translation_tokenizers,
    translation_tokenizer_from_json,
)
from regard.system.errors import DataError

spm = pytest.importorskip("sentencepiece")

ODD = [
    "Ein Café kostet 3,50 €; naïve façade!",
    "ﬁne ½ Ⅳ ｆｕｌｌ　ｗｉｄｔｈ ①",
    "Привет, мир. 日本語 テスト 😀",
    "a_b\tc ▁ d",
]
TEXTS = [
    "",
    " ",
    "hello",
    "  two  spaces  ",
    "It's a tiny test.",
    "▁mark",
    " ▁ mark",
    "tab\tand\nline\n\rends",
    "e\u0301 combined é",
    "日本語 unknown 😀😀 👨‍👩‍👧",
    "\u200bzero\u200d width\ufeff",
    "ＡＢＣ　ｄｅｆ",
    "½ cup ﬁne ™",
    "a" * 50,
    "control\x00\x07\x1b",
    "…«quotes»‘’“”",
    "x" + " " * 9 + "y",
    "\u00a0no break\u00a0",
    "1234567890 3.14",
]


def corpus() -> list[str]:
    lines = [
        side
        for one in itertools.islice(builtin.sentences("train"), 400)
        for side in (one.source, one.target)
    ]
    return [*lines, *ODD * 4, *(line.upper() for line in lines[:40])]


_MADE: dict[str, bytes] = {}


def made(**options: Any) -> bytes:
    """A tiny model, trained once."""
    key = json.dumps(options, sort_keys=True)
    if key not in _MADE:
        buffer = io.BytesIO()
        usual = {"vocab_size": 400, "character_coverage": 0.999, "minloglevel": 2, "num_threads": 1}
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus()),
            model_writer=buffer,
            hard_vocab_limit=False,
            **{**usual, **options},
        )
        _MADE[key] = buffer.getvalue()
    return _MADE[key]


def folder(path: Path, name: str, data: bytes, kind: str, **said: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / name).write_bytes(data)
    (path / "config.json").write_text(json.dumps({"model_type": kind}))
    (path / "tokenizer_config.json").write_text(json.dumps(said))
    return path


FILES: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram"},
    "identity": {"model_type": "unigram", "normalization_rule_name": "identity"},
    "kept spaces": {"model_type": "unigram", "remove_extra_whitespaces": False},
    "across words": {"model_type": "unigram", "split_by_whitespace": False},
    "folded": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
    "bytes": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 700},
    "no prefix": {"model_type": "unigram", "add_dummy_prefix": False},
    "bpe": {"model_type": "bpe"},
    "llama": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "vocab_size": 700,
        "remove_extra_whitespaces": False,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
    },
}


@pytest.fixture(scope="module", params=list(FILES))
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any]:
    data = made(**FILES[request.param])
    path = folder(
        tmp_path_factory.mktemp("spm"), "tokenizer.model", data, "llama", add_bos_token=False
    )
    return Both((open_backend(path)[0], spm.SentencePieceProcessor(model_proto=data)))


class Both(tuple):  # type: ignore[type-arg]
    """Shown by hypothesis without the whole of a tokenizer."""

    def __repr__(self) -> str:
        return "both"


def equal(ours: tokenizers.Tokenizer, theirs: Any, text: str) -> None:
    assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text


def test_ids_are_those_of_the_library(both: tuple[Any, Any]) -> None:
    for text in [*TEXTS, *ODD, *corpus()[:60]]:
        equal(*both, text)


# What the `tokenizers` library replaces as a whole, and SentencePiece character by character, is
# left out: accents that are
# characters of their own, the letters that make up Korean syllables, and what joins emoji. And so
# is what special tokens begin
# with: written in a text, they are themselves here, as in transformers.
ALPHABET = st.one_of(
    st.sampled_from(list(" \t\n▁.,!'aäeéinortβ日😀\u3000ＡＢ１ﬁ½™\u00a0\x00\x07\u200b…")),
    st.characters(
        exclude_categories=("Cs", "Mn", "Mc", "Me"), exclude_characters="<\r", max_codepoint=0xFFFF
    ),
)


@settings(max_examples=150, deadline=None)
@given(text=st.text(ALPHABET, max_size=30))
def test_ids_of_odd_texts(both: tuple[Any, Any], text: str) -> None:
    assume(both[0].normalizer.normalize_str(text) == both[1].normalize(text))
    equal(*both, text)


@pytest.mark.parametrize(
    "options", [{"model_type": "unigram"}, {"model_type": "bpe", "add_dummy_prefix": False}]
)
def test_symbols_of_the_user_are_one_piece_each(tmp_path: Path, options: dict[str, Any]) -> None:
    data = made(user_defined_symbols=["<n>", "ein"], remove_extra_whitespaces=False, **options)
    ours = open_backend(folder(tmp_path, "tokenizer.model", data, "gemma"))[0]
    for text in ("Meine Ente", "line<n>line <n> line<n>", "a  b    c", "klein ein"):
        equal(ours, spm.SentencePieceProcessor(model_proto=data), text)


# ------------------------------------------------------------------ families

PLAIN = [
    "This is a happy old queen.",
    "Meine  Tante ist nicht so müde?",
    "Ein Café, ½ ﬁne 日本 😀!",
    "Weil, because 3",
]


def numbers(options: dict[str, Any], *names: str) -> bytes:
    """A file whose first pieces are these, in this order."""
    roles = {name: i for i, name in enumerate(names)}
    ids = {f"{role}_id": roles.get(token, -1) for role, token in MARKS.items()}
    more = [name for name in names if name not in MARKS.values()]
    return made(
        **ids,
        control_symbols=more,
        **{f"{role}_piece": token for role, token in MARKS.items()},
        **options,
    )


MARKS = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}
UNI = {"model_type": "unigram", "vocab_size": 450}


def theirs(name: str, path: Path, **said: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, name).from_pretrained(path, **said)


FAIRSEQ = ("<unk>", "<s>", "</s>")
AROUND = ("[CLS]", "[SEP]", "[MASK]")
DEBERTA = {
    "unk_id": 3,
    "unk_piece": "[UNK]",
    "pad_id": 0,
    "pad_piece": "[PAD]",
    "bos_id": 1,
    "bos_piece": "[CLS]",
    "eos_id": 2,
    "eos_piece": "[SEP]",
}
GEMMA = {
    "add_dummy_prefix": False,
    "pad_id": 0,
    "eos_id": 1,
    "bos_id": 2,
    "unk_id": 3,
    "bos_piece": "<bos>",
    "eos_piece": "<eos>",
    "control_symbols": ["<mask>"],
}
BEGUN = {"add_bos_token": True}
CASES: dict[str, tuple[str, str, Callable[[], bytes], dict[str, Any]]] = {
    "t5": ("T5Tokenizer", "spiece.model", lambda: numbers(UNI, "<pad>", "</s>", "<unk>"), {}),
    "xlm-roberta": (
        "XLMRobertaTokenizer",
        "sentencepiece.bpe.model",
        lambda: numbers(UNI, *FAIRSEQ),
        {},
    ),
    "camembert": (
        "CamembertTokenizer",
        "sentencepiece.bpe.model",
        lambda: numbers(UNI, *FAIRSEQ),
        {},
    ),
    "mbart": (
        "MBartTokenizer",
        "sentencepiece.bpe.model",
        lambda: numbers(UNI, *FAIRSEQ),
        {"src_lang": "de_DE"},
    ),
    "mbart50": (
        "MBart50Tokenizer",
        "sentencepiece.bpe.model",
        lambda: numbers(UNI, *FAIRSEQ),
        {"src_lang": "de_DE"},
    ),
    "pegasus": (
        "PegasusTokenizer",
        "spiece.model",
        lambda: numbers(UNI, "<pad>", "</s>", "<unk>"),
        {},
    ),
    "albert": (
        "AlbertTokenizer",
        "spiece.model",
        lambda: numbers(UNI, "<pad>", "<unk>", *AROUND),
        {},
    ),
    "big_bird": (
        "BigBirdTokenizer",
        "spiece.model",
        lambda: numbers(UNI, "<pad>", "</s>", "<unk>", "<s>", *AROUND),
        {},
    ),
    "deberta-v2": ("DebertaV2Tokenizer", "spm.model", lambda: made(**UNI, **DEBERTA), {}),
    "llama": (
        "LlamaTokenizer",
        "tokenizer.model",
        lambda: made(**FILES["llama"]),
        {"legacy": False, **BEGUN},
    ),
    "llama, bare": (
        "LlamaTokenizer",
        "tokenizer.model",
        lambda: made(**FILES["llama"]),
        {"legacy": False, "add_prefix_space": False, "add_eos_token": True, **BEGUN},
    ),
    "gemma": (
        "GemmaTokenizer",
        "tokenizer.model",
        lambda: made(**{**FILES["llama"], **GEMMA}),
        BEGUN,
    ),
}
FORGETFUL = (
    "mbart",
    "big_bird",
    "deberta-v2",
)  # transformers 5 does not normalise for these as their files say


@pytest.mark.parametrize("kind", CASES)
def test_families_number_and_frame_as_transformers_does(tmp_path: Path, kind: str) -> None:
    name, file, data, said = CASES[kind]
    path = folder(
        tmp_path,
        file,
        data(),
        kind.removesuffix("50").removesuffix(", bare"),
        tokenizer_class=name,
        **said,
    )
    ours, other, library = (
        open_encoder_tokenizer(path),
        theirs(name, path, **said),
        spm.SentencePieceProcessor(model_proto=data()),
    )
    for text in PLAIN:
        found = ours.encode_with_template([text])[0]
        if kind not in FORGETFUL or "½" not in text:
            assert found.ids == other(text)["input_ids"], text
        if kind not in ("albert", "llama, bare"):
            pieces = [
                piece
                for piece in library.encode(text, out_type=str)
                if library.piece_to_id(piece) != library.unk_id()
            ]
            tokens = [
                ours.id_to_token(i)
                for i, mark in zip(found.ids, found.special_tokens_mask, strict=True)
                if not mark
            ]
            assert [token for token in tokens if token not in ("<unk>", "[UNK]")] == pieces
    assert (
        ours.encode_with_template([(PLAIN[0], PLAIN[1])])[0].ids
        == other(PLAIN[0], PLAIN[1])["input_ids"]
    )
    for token in (
        "<mask>",
        "[MASK]",
        "<extra_id_0>",
        "<extra_id_99>",
        "<unk_7>",
        "<mask_2>",
        "de_DE",
        "sl_SI",
        "</s>",
    ):
        known = other.get_vocab().get(token)
        assert ours.token_to_id(token) == known, token
    assert ours.decode(found.ids) == other.decode(found.ids, skip_special_tokens=True)


def test_albert_folds_as_its_folder_says(tmp_path: Path) -> None:
    for i, said in enumerate(
        [
            {"do_lower_case": False},
            {"keep_accents": True},
            {"do_lower_case": False, "keep_accents": True},
        ]
    ):
        path = folder(tmp_path / str(i), "spiece.model", CASES["albert"][2](), "albert", **said)
        for text in PLAIN:
            assert (
                open_encoder_tokenizer(path).encode_with_template([text])[0].ids
                == theirs("AlbertTokenizer", path, **said)(text)["input_ids"]
            )


def marian(path: Path, coverage: float = 1.0) -> Path:
    """A folder with pieces for each side, and numbers of its own for all of them together."""
    path.mkdir()
    usual: dict[str, Any] = {"model_type": "unigram", "character_coverage": 1.0}
    sides = [
        made(**{**usual, "character_coverage": coverage}, vocab_size=330),
        made(**usual, vocab_size=360),
    ]
    found: dict[str, None] = {}
    for name, data in zip(("source.spm", "target.spm"), sides, strict=True):
        (path / name).write_bytes(data)
        found |= dict.fromkeys(piece.text for piece in read_sentencepiece(path / name).pieces)
    words = [token for token in found if token not in ("<unk>", "<s>", "</s>")]
    random.Random(1).shuffle(words)
    order = ["</s>", "<unk>", ">>fra<<", ">>deu<<", *words, "<pad>"]
    (path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(order)}))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"source_lang": "en", "target_lang": "fr"})
    )
    (path / "config.json").write_text(json.dumps({"model_type": "marian"}))
    return path


@pytest.mark.filterwarnings("ignore")
def test_marian_has_pieces_for_each_side_and_numbers_for_both(tmp_path: Path) -> None:
    path = marian(tmp_path / "marian")
    source, target = open_translation_tokenizers(path)
    assert target is not source
    other = theirs("MarianTokenizer", path)
    for text in [
        *(text for text in TEXTS if "\u0301" not in text),
        *PLAIN,
        *corpus()[:80],
        ">>fra<< Hello there",
        ">>deu<<Hello",
    ]:
        ids = source.frame(source.encode(text))
        assert ids == other(text)["input_ids"], text
        assert [*target.encode(text), target.special_token_id("eos")] == other(text_target=text)[
            "input_ids"
        ], text
    known = [target.encode(line) for line in corpus()[:20]]
    assert target.decode_batch(known) == other.batch_decode(known, use_source_tokenizer=False)
    assert (
        source.special_token_id("pad"),
        source.special_token_id("eos"),
        source.special_token_id("unk"),
    ) == (
        other.pad_token_id,
        other.eos_token_id,
        other.unk_token_id,
    )
    again = translation_tokenizer_from_json(source.to_json())
    assert again.encode(PLAIN[0]) == source.encode(PLAIN[0])


@pytest.mark.filterwarnings("ignore")
def test_marian_finds_a_character_of_the_other_side(tmp_path: Path) -> None:
    path = marian(tmp_path / "marian", coverage=0.98)
    source, other = open_translation_tokenizers(path)[0], theirs("MarianTokenizer", path)
    assert source.token_to_id("é") not in (None, source.special_token_id("unk"))
    assert source.token_to_id("é") in source.encode("die é Ente")
    assert source.frame(source.encode("die é Ente")) == other("die é Ente")["input_ids"]


# ------------------------------------------------------------------ damage


def test_an_exact_tokenizer_goes_there_and_back(tmp_path: Path) -> None:
    path = folder(tmp_path, "tokenizer.model", made(**FILES["llama"]), "llama", add_bos_token=True)
    ours = open_language_model_tokenizer(path)
    for text in ("Hello  there\n", "日本 😀", " x"):
        assert ours.decode(ours.encode(text)) == text
    assert ours.input_ids("Hello")[0] == ours.special_token_id("bos") == 1


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_is_told_and_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(made(**FILES[data.draw(st.sampled_from(["unigram", "llama"]))]))
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    for _ in range(data.draw(st.integers(0, 8))):
        if whole:
            whole[data.draw(st.integers(0, min(len(whole) - 1, 20_000)))] = data.draw(
                st.integers(0, 255)
            )
    path = folder(
        tmp_path_factory.getbasetemp() / "damaged", "tokenizer.model", bytes(whole), "llama"
    )
    try:
        ours = open_language_model_tokenizer(path)
        for text in (*TEXTS, *ODD):
            ours.encode(text)
    except DataError as error:
        assert error.repair


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    for options in (
        {"model_type": "word"},
        {"model_type": "char"},
        {"treat_whitespace_as_suffix": True},
    ):
        with pytest.raises(DataError, match="not understood"):
            open_backend(folder(tmp_path, "tokenizer.model", made(**options), "llama"))
    with pytest.raises(DataError, match="how a nothing numbers"):
        open_backend(folder(tmp_path, "tokenizer.model", made(**UNI), "nothing"))
    with pytest.raises(DataError, match="extra_ids"):
        open_backend(folder(tmp_path, "tokenizer.model", made(**UNI), "t5", extra_ids=10**9))
    with pytest.raises(DataError, match="split_by_punct"):
        open_backend(
            folder(tmp_path, "tokenizer.model", made(**UNI), "deberta-v2", split_by_punct=True)
        )
    with pytest.raises(DataError, match="does not begin"):
        open_backend(folder(tmp_path, "tokenizer.model", made(**UNI, unk_id=7), "xlm-roberta"))
