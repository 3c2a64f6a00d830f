"""Opening tokenizers from files.

A model folder in Hugging Face's layout holds one of these, and the first that is there is taken:

- `tokenizer.json`, the `tokenizers` library's own format;
- `vocab.txt` (WordPiece, BERT);
- SentencePiece's files (`spiece.model`, `source.spm`, ...);
- `vocab.json` and `merges.txt` (byte-level BPE, GPT-2, RoBERTa, CLIP).

From the latter three the same tokenizer is assembled here that transformers would make of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.data.text.added_tokens import (
    CONVERT,
    FETCH_AGAIN,
    FOLDER_TOKEN_NAMES,
    add_tokens,
    read_settings,
    required_token,
    roberta_template,
    token_content,
    with_usual_names,
)
from regard.data.text.byte_pair_encoding import open_byte_level_bpe
from regard.data.text.sentencepiece_layouts import (
    SIDES,
    holds_sentencepiece,
    holds_source_and_target,
    open_sentencepiece,
    open_side,
)
from regard.data.text.tokenizer import Role, Template, Tokenizer, library_errors
from regard.system import disk
from regard.system.errors import DataError

_LEARN_AGAIN = "give a whole file; fetch or learn it again"
_NO_FILE = "give the path of a tokenizer.json, as Hugging Face folders hold it"
# A private-use character in no vocabulary: a model whose unknown token is missing from its own
# vocabulary is noticed only when it meets one.
_NO_TOKEN = "\U0010fffd"


# --- one file ---


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a language model from tokenizer.json, or from what its folder holds instead.

    No special token is required of the file.
    """
    path = Path(path)
    if not path.exists() and holds_tokenizer(path.parent):
        return open_language_model_tokenizer(path.parent)
    backend = _parse_tokenizer_json(_read_tokenizer_json(path), str(path), _LEARN_AGAIN)
    return Tokenizer(backend, framing=Template(end=False), origin=str(path))


def load_translation_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a translation model from tokenizer.json."""
    return translation_tokenizer_from_json(_read_tokenizer_json(Path(path)), origin=str(path))


def translation_tokenizer_from_json(text: str, *, origin: str = "this tokenizer") -> Tokenizer:
    """The inverse of `Tokenizer.to_json`; `origin` names the text in error messages."""
    return Tokenizer.for_translation(
        _parse_tokenizer_json(text, origin, _LEARN_AGAIN), origin=origin
    )


def read_vocabulary(path: Path) -> dict[int, str]:
    """id → token of any tokenizer.json, whatever special tokens it has or lacks."""
    with library_errors(f"{path} is not a usable tokenizer.json", _LEARN_AGAIN):
        backend = tokenizers.Tokenizer.from_str(disk.read_bytes(path).decode())
    return {i: token for token, i in backend.get_vocab().items()}


def _read_tokenizer_json(path: Path) -> str:
    try:
        return disk.read_bytes(path).decode()
    except OSError as error:
        raise DataError(f"cannot read the tokenizer {path}: {error.strerror}", _NO_FILE) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"the tokenizer {path} is not UTF-8 text (byte {error.start})", _NO_FILE
        ) from error


def _parse_tokenizer_json(text: str, origin: str, repair: str) -> tokenizers.Tokenizer:
    with library_errors(f"{origin} is not a usable tokenizer.json", repair):
        backend = tokenizers.Tokenizer.from_str(text)
        backend.encode(_NO_TOKEN)  # fails here rather than on a user's text
    return backend


# --- a model folder ---


def open_encoder_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of an encoder's folder, with the special tokens that the folder names."""
    backend, special_tokens, origin = open_backend(Path(folder))
    return Tokenizer(backend, special_tokens, origin=origin)


def open_language_model_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a language model's folder: a text is framed as a prompt, without an end."""
    backend, _, origin = open_backend(folder)
    return Tokenizer(backend, framing=Template(end=False), origin=origin)


def open_translation_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source and the target tokenizer of a translation model, which may be one."""
    backend, _, origin = open_backend(folder)
    source = Tokenizer.for_translation(backend, origin=origin)
    target_path = folder / "target_tokenizer.json"
    if target_path.exists():
        return source, load_translation_tokenizer(target_path)
    # SentencePiece files may give the target side a tokenizer of its own (Marian).
    if (folder / "tokenizer.json").is_file() or not holds_source_and_target(folder):
        return source, source
    vocabulary = read_settings(folder / "target_vocab.json") or read_settings(folder / "vocab.json")
    with library_errors(f"the SentencePiece files of {folder} are not usable", FETCH_AGAIN):
        target_backend = open_side(folder, SIDES[1], vocabulary)
    return source, Tokenizer.for_translation(target_backend, origin=origin)


def holds_tokenizer(folder: Path) -> bool:
    """Whether there is a tokenizer that `open_backend` knows."""
    return (
        (folder / "tokenizer.json").is_file()
        or (folder / "vocab.txt").is_file()
        or ((folder / "vocab.json").is_file() and (folder / "merges.txt").is_file())
        or holds_sentencepiece(folder)
    )


def open_backend(folder: Path) -> tuple[tokenizers.Tokenizer, dict[Role, str], str]:
    """The tokenizer of a model folder, its special tokens by role, and the file it is from.

    A special token has the name that the folder gives it, or else one of the usual ones.
    """
    if not holds_tokenizer(folder):
        models = sorted(map(str, [*folder.glob("*.model"), *folder.glob("*.spm")]))
        content = ", ".join(models[:1]) or "none"
        raise DataError(f"{folder} holds no tokenizer that can be opened here ({content})", CONVERT)
    # Where both name a token, tokenizer_config.json counts.
    settings = {
        **read_settings(folder / "special_tokens_map.json"),
        **read_settings(folder / "tokenizer_config.json"),
    }
    special_tokens: dict[Role, str] = {}
    for role in FOLDER_TOKEN_NAMES:
        token = token_content(settings.get(f"{role}_token"))
        if token is not None:
            special_tokens[role] = token
    tokenizer_json = folder / "tokenizer.json"
    vocab_txt = folder / "vocab.txt"
    vocab_json = folder / "vocab.json"
    if tokenizer_json.is_file():
        text = disk.read_text(tokenizer_json, DataError)
        backend = _parse_tokenizer_json(text, str(tokenizer_json), FETCH_AGAIN)
        origin = tokenizer_json
        special_tokens = with_usual_names(special_tokens, backend.get_vocab())
    elif vocab_txt.is_file():
        with library_errors(f"{vocab_txt} is not a usable vocabulary", FETCH_AGAIN):
            backend, special_tokens = _wordpiece(vocab_txt, settings, special_tokens)
        origin = vocab_txt
    elif holds_sentencepiece(folder):
        with library_errors(f"the SentencePiece files of {folder} are not usable", FETCH_AGAIN):
            backend, special_tokens = _sentencepiece(folder, settings, special_tokens)
        origin = folder
    else:
        problem = f"{vocab_json} and merges.txt are not a usable vocabulary"
        with library_errors(problem, FETCH_AGAIN):
            backend, special_tokens = open_byte_level_bpe(folder, settings, special_tokens)
        origin = vocab_json
    return backend, special_tokens, str(origin)


# --- from a vocabulary to a tokenizer ---


def _sentencepiece(
    folder: Path, settings: Mapping[str, Any], special_tokens: dict[Role, str]
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    if holds_source_and_target(folder):
        backend = open_side(folder, SIDES[0], read_settings(folder / "vocab.json"))
    else:
        backend = open_sentencepiece(folder, read_settings(folder / "config.json"), settings)
    special_tokens = with_usual_names(special_tokens, backend.get_vocab())
    add_tokens(backend, folder, settings, special_tokens)
    backend.encode(_NO_TOKEN)
    return backend, special_tokens


def _wordpiece(
    path: Path, settings: Mapping[str, Any], special_tokens: dict[Role, str]
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    """WordPiece from vocab.txt, one token a line."""
    # The line number is the id. Not `splitlines`: a token may be U+2028 or the like.
    lines = disk.read_text(path, DataError).removesuffix("\n").split("\n")
    vocabulary = {line: i for i, line in enumerate(lines)}
    special_tokens = with_usual_names(special_tokens, vocabulary)
    unknown = special_tokens.get("unk", "[UNK]")
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),  # None: where lower case is asked for
        lowercase=settings.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    add_tokens(backend, path.parent, settings, special_tokens)
    cls = required_token(path, special_tokens, "cls")
    sep = required_token(path, special_tokens, "sep")
    if cls == "<s>":  # MPNet: WordPiece in RoBERTa's template
        backend.post_processor = roberta_template(backend, cls, sep)
    else:
        backend.post_processor = processors.TemplateProcessing(
            # `:0` and `:1` are segment ids.
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
        )
    return backend, special_tokens
