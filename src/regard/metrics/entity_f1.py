"""Entity-level F1 of IOB tags (B-x, I-x, O), as conlleval counts it."""

from __future__ import annotations

from collections.abc import Sequence

from regard.metrics.classification import ClassificationScore, classification_score


def tagging_score(
    predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> ClassificationScore:
    """Accuracy over tags, and F1 over entities, from the tags of each sentence.

    An entity counts as found if its first word, its last word and its kind are right. Tags that
    are not of the kind B-x have no entities; F1 is then the mean over tags.
    """
    over_tags = classification_score(
        [tag for tags in predictions for tag in tags], [tag for tags in labels for tag in tags]
    )
    if not any(tag.startswith("B-") for tags in labels for tag in tags):
        return over_tags
    # Micro-average: entities of all sentences and kinds in one set, told apart by sentence number.
    predicted = {(i, *span) for i, tags in enumerate(predictions) for span in entity_spans(tags)}
    expected = {(i, *span) for i, tags in enumerate(labels) for span in entity_spans(tags)}
    # 2 · correct / (predicted + labelled), in percent.
    f1 = 200.0 * len(predicted & expected) / max(1, len(predicted) + len(expected))
    return ClassificationScore(over_tags.accuracy, f1, over_tags.examples)


def entity_spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """The entities of a sentence: first word, word after the last, kind.

    An I-x after anything but x begins an entity.
    """
    spans: list[tuple[int, int, str]] = []
    for i, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")  # "O" has no kind
        if mark == "I" and spans and spans[-1][1:] == (i, kind):
            spans[-1] = (spans[-1][0], i + 1, kind)
        elif mark in ("B", "I"):
            spans.append((i, i + 1, kind))
    return spans
