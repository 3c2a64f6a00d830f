"""`Model.tokens`: texts as the padded tensors of a model's call."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Encoding
from torch import Tensor

from regard.data.padding import pad_rows
from regard.data.text.tokenizer import Text, Tokenizer
from regard.system.arguments import whole_number
from regard.system.errors import DataError, Say, SettingError

# Repairs of texts that are too long, by what the method that read them offers.
SPLIT = "split them"
SPLIT_OR_TRUNCATE = "split them, or truncate their ends: --truncation, in Python truncation=True"
SHORTEN_OR_TRUNCATE = (
    "shorten them, or truncate their beginnings: --truncation, in Python truncation=True"
)
SAY_TRUNCATION = "split them, or set truncation=True"


def smaller_limit(*limits: int | None) -> int | None:
    """The smallest of the limits that there are; None if there is none."""
    # A limit of the model's own is checked with its spec.
    numbers = [whole_number("max_length", limit, 1) for limit in limits if limit is not None]
    return min(numbers, default=None)


def texts_to_truncate(
    lengths: Sequence[int],
    limit: int | None,
    truncation: bool,
    say: Say,
    repair: str = SAY_TRUNCATION,
    numbers: Sequence[int] | None = None,
    *,
    prompt_tokens: int | None = None,
) -> list[int]:
    """The numbers of the texts that have more than `limit` tokens.

    They are an error, with this repair, unless they are to be truncated, which is then said.
    `numbers` count the texts as a user does.
    `prompt_tokens` are the last ones of a prompt, which stay; of other texts the first ones do.
    """
    if limit is None:
        return []
    too_long = [i for i, length in enumerate(lengths) if length > limit]
    if not too_long:
        return []
    problem = (
        f"{len(too_long)} of {len(lengths)} texts have more than the {limit} tokens "
        "that this model reads"
    )
    if not truncation:
        first = too_long[0]
        number = first if numbers is None else numbers[first]
        raise DataError(
            f"{problem}; the first is text {number + 1}, which has {lengths[first]}", repair
        )
    # Never silently: what is cut off may be what the answer depends on.
    places = "ends" if prompt_tokens is None else "beginnings"
    dropped = sum(lengths[i] - (prompt_tokens or limit) for i in too_long)
    say(f"{problem}; {dropped:,} tokens at their {places} are truncated")
    return too_long


def template_encodings(
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    limit: int | None,
    truncation: bool,
    say: Say,
    repair: str = SAY_TRUNCATION,
) -> list[Encoding]:
    """Encodings of texts or pairs with the template's special tokens, of at most `limit` tokens."""
    encodings = tokenizer.encode_with_template(texts)
    lengths = [len(encoding) for encoding in encodings]
    too_long = texts_to_truncate(lengths, limit, truncation, say, repair)
    # Encoded anew, not sliced: the special tokens behind the text must stay.
    truncated = tokenizer.encode_with_template([texts[i] for i in too_long], limit)
    for i, encoding in zip(too_long, truncated, strict=True):
        encodings[i] = encoding
    return encodings


def framed_rows(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    limit: int | None,
    truncation: bool,
    say: Say,
) -> list[list[int]]:
    """Token ids of each text with its special tokens, which stay when the text is truncated."""
    contents = tokenizer.encode_batch(texts)
    rows = [tokenizer.frame(ids) for ids in contents]
    for i in texts_to_truncate([len(row) for row in rows], limit, truncation, say):
        assert limit is not None
        # What the start and end tokens leave for the text.
        room = limit - len(tokenizer.frame([]))
        rows[i] = tokenizer.frame(contents[i][: max(0, room)])
    return rows


def texts_and_pairs(texts: Text | Sequence[Text]) -> list[Text]:
    """One text, one pair (a tuple), or several of them as a list."""
    return [texts] if isinstance(texts, str | tuple) else list(texts)


def text_list(texts: Text | Sequence[Text]) -> list[str]:
    """One text or several as a list; pairs and whatever is no text are errors."""
    singles = texts_and_pairs(texts)
    for one in singles:
        if not isinstance(one, str):
            problem = f"expected a string, not {type(one).__name__}"
            raise DataError(problem, "pass a string, or a list of strings")
    return singles  # type: ignore[return-value]


def text_pairs(first: str | Sequence[str], second: str | Sequence[str]) -> list[tuple[str, str]]:
    """Two texts as one pair, or two lists of the same length as many."""
    firsts = text_list(first)
    seconds = text_list(second)
    if isinstance(first, str) != isinstance(second, str) or len(firsts) != len(seconds):
        raise DataError(
            "the two lists of texts differ in length",
            "pass two texts, or two lists of the same length",
        )
    return list(zip(firsts, seconds, strict=True))


def different_texts(name: str, texts: Sequence[str], least: int = 1) -> list[str]:
    """At least `least` texts, all different and not blank: they are keys of a result."""
    several = [] if isinstance(texts, str) else text_list([*texts])
    different = {text for text in several if text.strip()}
    if not least <= len(several) == len(different):
        raise SettingError(
            f"{name} must be {least} or more different texts, none of them empty", f"change {name}"
        )
    return several


def padded_inputs(rows: Sequence[Sequence[int]], pad_token_id: int) -> dict[str, Tensor]:
    """input_ids and attention_mask (1 = token, 0 = padding) [B, T], padded on the right."""
    if not rows:
        raise DataError("the list of texts is empty", "pass at least one text")
    ids, padding_mask = pad_rows(rows, pad_token_id)
    # 0 and 1, as the tokenizers of transformers have them, although the models take booleans.
    return {"input_ids": ids, "attention_mask": padding_mask.long()}
