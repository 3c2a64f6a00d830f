"""WordPiece (BERT), from a vocab.txt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.data.text.added_tokens import (
    add_tokens,
    required_token,
    roberta_template,
    with_usual_names,
)
from regard.data.text.tokenizer import Role
from regard.system import disk
from regard.system.errors import DataError


def open_wordpiece(
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
