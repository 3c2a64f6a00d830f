"""What a reader says of texts, against transformers' pipelines and models on the same
tiny folders.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers
from torch import Tensor

import regard
from regard.models import TextEncoder
from regard.models.spans import merge_entities
from regard.system.errors import DataError, ModelError

transformers = pytest.importorskip("transformers")

LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *".,!?'"]
VOCABULARY = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS),
    "the", "fox", "dog", "runs", "jump", "##ing", "over", "lazy",
]  # fmt: skip
TEXTS = [
    "The fox runs.",
    "A dog is jumping over the lazy fox, and the fox over the dog!",
    "dog",
    "Who runs? The lazy dog.",
]


def folder(place: Path, task: str, family: str = "Bert", **changes: Any) -> Path:
    """A tiny random model with its tokenizer; parameters so large that it has opinions."""
    torch.manual_seed(1)
    sizes = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 24,
        "intermediate_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 40,
        "pad_token_id": 0,
    }
    config = getattr(transformers, f"{family}Config")(**sizes, **changes)
    model = getattr(transformers, family + task)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(place)
    (place / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    transformers.BertTokenizer.from_pretrained(place).save_pretrained(place)
    return place


def reader(place: Path) -> TextEncoder:
    held = regard.load(place)
    assert isinstance(held, TextEncoder)
    held.budget = 40  # several batches
    return held


def pipeline(task: str, place: Path, **options: Any) -> Any:
    return transformers.pipeline(task, model=str(place), device="cpu", **options)


# ------------------------------------------------------------------ one vector


@torch.inference_mode()
def states(place: Path, texts: list[str], most: int | None = None) -> tuple[Tensor, Tensor]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    model = transformers.AutoModel.from_pretrained(place).eval()
    cut = {} if most is None else {"truncation": True, "max_length": most}
    batch = tokenizer(texts, padding=True, return_tensors="pt", **cut)
    return model(**batch).last_hidden_state, batch["attention_mask"][..., None].float()


def test_the_mean_is_taken_where_no_folder_says_otherwise(tmp_path: Path) -> None:
    ours = reader(folder(tmp_path, "Model"))
    x, w = states(tmp_path, TEXTS)
    wanted = (x * w).sum(1) / w.sum(1)
    torch.testing.assert_close(ours.embed(TEXTS), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.embed(TEXTS[1]), wanted[1], rtol=0, atol=1e-5)
    assert ours.embed([]).shape == (0, 24)


def test_a_text_as_token_ids_has_the_same_vector(tmp_path: Path) -> None:
    ours = reader(folder(tmp_path, "Model"))
    bare = ours.tokenizer.encode_batch(TEXTS)
    framed = [ours.tokenizer.frame(ids) for ids in bare]
    for rows in (bare, framed):
        torch.testing.assert_close(ours.embed_ids(rows), ours.embed(TEXTS), rtol=0, atol=1e-6)
    with pytest.raises(DataError, match=r"41 tokens.* 40"):
        ours.embed_ids([bare[0], [7] * 39])


def sentence(place: Path, pooling: dict[str, Any], normalize: bool = True, **more: Any) -> None:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {
            "idx": i,
            "path": "" if i == 0 else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (place / "modules.json").write_text(json.dumps(modules))
    (place / "1_Pooling").mkdir(exist_ok=True)
    (place / "1_Pooling/config.json").write_text(
        json.dumps({"word_embedding_dimension": 24, **pooling})
    )
    (place / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 12, "do_lower_case": False, **more})
    )


def test_a_folder_of_sentence_transformers(tmp_path: Path) -> None:
    folder(tmp_path, "Model")
    short = [TEXTS[0], TEXTS[2]]
    x, w = states(tmp_path, short)
    lengths = w.sum(1)
    places = torch.arange(1, x.shape[1] + 1)[:, None] * w
    wanted = {
        "cls_token": x[:, 0],
        "mean_tokens": (x * w).sum(1) / lengths,
        "mean_sqrt_len_tokens": (x * w).sum(1) / lengths.sqrt(),
        "max_tokens": x.masked_fill(w == 0, -1e9).amax(1),
        "weightedmean_tokens": (x * places).sum(1) / places.sum(1),
        "lasttoken": torch.stack(
            [row[int(n) - 1] for row, n in zip(x, lengths[:, 0], strict=True)]
        ),
    }
    for name, vectors in wanted.items():
        for normalize in (True, False):
            flags = {f"pooling_mode_{other}": other == name for other in wanted}
            sentence(tmp_path, flags, normalize)
            expected = torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors
            torch.testing.assert_close(reader(tmp_path).embed(short), expected, rtol=0, atol=1e-5)
    sentence(tmp_path, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, False)
    both = torch.cat([wanted["cls_token"], wanted["mean_tokens"]], -1)
    torch.testing.assert_close(reader(tmp_path).embed(short), both, rtol=0, atol=1e-5)
    sentence(tmp_path, {"pooling_mode": "mean"}, False)
    torch.testing.assert_close(
        reader(tmp_path).embed(short), wanted["mean_tokens"], rtol=0, atol=1e-5
    )
    (tmp_path / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"q": "the "}, "default_prompt_name": "q"})
    )
    prompted, mask = states(tmp_path, ["the " + text for text in short])
    expected = (prompted * mask).sum(1) / mask.sum(1)
    torch.testing.assert_close(reader(tmp_path).embed(short), expected, rtol=0, atol=1e-5)


def test_nothing_is_cut_in_silence(tmp_path: Path) -> None:
    folder(tmp_path, "Model")
    sentence(tmp_path, {"pooling_mode_mean_tokens": True}, False)
    ours = reader(tmp_path)
    told: list[str] = []
    ours.say = told.append
    with pytest.raises(DataError, match=r"1 of 4 texts .* 12 tokens .* text 2"):
        ours.embed(TEXTS)
    assert not told
    x, w = states(tmp_path, TEXTS, most=12)
    torch.testing.assert_close(
        ours.embed(TEXTS, truncation=True), (x * w).sum(1) / w.sum(1), rtol=0, atol=1e-5
    )
    assert told == [
        "1 of 4 texts have more than the 12 tokens that this model reads; "
        "10 tokens at their ends are truncated"
    ]
    with pytest.raises(DataError, match="40 tokens"):
        reader(folder(tmp_path / "tags", "ForTokenClassification")).tag("dog " * 50)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"pooling_mode_mean_tokens": False}, "unsupported pooling"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_magic": True}, "magic"),
        ({"pooling_mode": "attention"}, "attention"),
    ],
)
def test_poolings_that_are_not_understood(
    changes: dict[str, Any], word: str, tmp_path: Path
) -> None:
    folder(tmp_path, "Model")
    sentence(tmp_path, changes)
    with pytest.raises(ModelError, match=word):
        reader(tmp_path).embed("dog")


def test_modules_that_are_not_understood(tmp_path: Path) -> None:
    folder(tmp_path, "Model")
    sentence(tmp_path, {"pooling_mode_mean_tokens": True})
    modules = json.loads((tmp_path / "modules.json").read_text())
    for changed, word in (
        ([*modules, {"type": "sentence_transformers.models.Dense"}], "Dense"),
        ([modules[0], {**modules[1], "path": "../elsewhere"}], "refers to a path outside"),
        ([1], "not a list of modules"),
    ):
        (tmp_path / "modules.json").write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=word):
            reader(tmp_path).embed("dog")


# ------------------------------------------------------------------ classes


@pytest.mark.parametrize(
    ("problem", "names"),
    [(None, "abc"), ("multi_label_classification", "abc"), ("regression", "a"), (None, "a")],
)
def test_classify(problem: str | None, names: str, tmp_path: Path) -> None:
    labels = dict(enumerate(names))
    folder(
        tmp_path,
        "ForSequenceClassification",
        id2label=labels,
        label2id={n: i for i, n in labels.items()},
        problem_type=problem,
    )
    ours, theirs = reader(tmp_path), pipeline("text-classification", tmp_path, top_k=None)
    for found, wanted in zip(ours.classify(TEXTS), theirs(TEXTS), strict=True):
        assert list(found) == [one["label"] for one in wanted]
        assert list(found.values()) == pytest.approx([one["score"] for one in wanted], abs=1e-5)
    pair = ("The fox runs.", "dog")
    wanted = theirs({"text": pair[0], "text_pair": pair[1]})
    assert ours.classify(pair) == pytest.approx(
        {one["label"]: one["score"] for one in wanted}, abs=1e-5
    )
    assert ours.classify([pair, pair])[1] == pytest.approx(ours.classify(pair), abs=1e-5)
    assert ours.classify(TEXTS[0]) == pytest.approx(ours.classify(TEXTS)[0], abs=1e-5)


def test_names_of_labels(tmp_path: Path) -> None:
    folder(
        tmp_path, "ForSequenceClassification", id2label={0: "same", 1: "same"}, label2id={"same": 0}
    )
    assert sorted(reader(tmp_path).classify("dog")) == ["same (0)", "same (1)"]


def test_follows(tmp_path: Path) -> None:
    ours = reader(folder(tmp_path, "ForNextSentencePrediction"))
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
    model = transformers.BertForNextSentencePrediction.from_pretrained(tmp_path).eval()
    first, second = TEXTS[:2], TEXTS[2:]
    with torch.inference_mode():
        logits = model(**tokenizer(first, second, padding=True, return_tensors="pt")).logits
    wanted = logits.softmax(-1)[:, 0].tolist()
    assert ours.follows(first, second) == pytest.approx(wanted, abs=1e-5)
    assert ours.follows(first[0], second[0]) == pytest.approx(wanted[0], abs=1e-5)
    with pytest.raises(DataError, match="same length"):
        ours.follows(first, second[:1])


# ------------------------------------------------------------------ words


def test_tag(tmp_path: Path) -> None:
    labels = dict(enumerate(["O", "B-X", "I-X"]))
    folder(
        tmp_path,
        "ForTokenClassification",
        id2label=labels,
        label2id={n: i for i, n in labels.items()},
    )
    ours = reader(tmp_path)
    found, theirs = ours.tag(TEXTS), pipeline("token-classification", tmp_path, ignore_labels=[])
    for text, words, tokens in zip(TEXTS, found, theirs(TEXTS), strict=True):
        firsts = {token["start"]: token for token in tokens if not token["word"].startswith("##")}
        assert [word.start for word in words] == sorted(firsts)
        for word in words:
            token = firsts[word.start]
            assert (word.label, word.probability) == (
                token["entity"],
                pytest.approx(float(token["score"]), abs=1e-5),
            )
            assert text[word.start : word.end] == word.text
    assert "jumping" in [word.text for word in found[1]]
    assert [word.label for word in ours.tag(TEXTS[1])] == [word.label for word in found[1]]
    assert len({word.label for words in found for word in words}) > 1


def test_entities() -> None:
    from regard.models import Tagged

    def words(labels: str) -> list[Tagged]:
        return [
            Tagged("w", label, 0.5 + i / 10, 2 * i, 2 * i + 1)
            for i, label in enumerate(labels.split())
        ]

    def joined(labels: str) -> list[tuple[str, str, float]]:
        return [
            (e.text, e.label, round(e.probability, 2))
            for e in merge_entities("w w w w w", words(labels))
        ]

    assert joined("O B-X I-X O I-Y") == [("w w", "X", 0.6), ("w", "Y", 0.9)]
    assert joined("B-X B-X I-Y I-Y O") == [("w", "X", 0.5), ("w", "X", 0.6), ("w w", "Y", 0.7)]
    assert joined("I-X O I-X X X") == [("w", "X", 0.5), ("w w w", "X", 0.7)]
    assert joined("O O O O O") == []


def test_detect(tmp_path: Path) -> None:
    ours = reader(folder(tmp_path, "ForPreTraining", "Electra", embedding_size=12))
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
    model = transformers.ElectraForPreTraining.from_pretrained(tmp_path).eval()
    for text, found in zip(TEXTS, ours.detect(TEXTS), strict=True):
        with torch.inference_mode():
            wanted = (
                model(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1].sigmoid().tolist()
            )
        assert [one.probability for one in found] == pytest.approx(wanted, abs=1e-5)
        assert all(text[one.start : one.end] == one.text != "" for one in found)
    assert ours.detect("dog")[0].text == "dog"


# ------------------------------------------------------------------ masks


def test_fill(tmp_path: Path) -> None:
    ours, theirs = reader(folder(tmp_path, "ForMaskedLM")), None
    texts = ["the [MASK] runs.", "Lazy [MASK] jump over the lazy dog, and the fox!", "a [MASK]"]
    theirs = pipeline("fill-mask", tmp_path, top_k=7)
    for text, found, wanted in zip(texts, ours.fill(texts, top=7), theirs(texts), strict=True):
        assert [f.probability for f in found] == pytest.approx(
            [w["score"] for w in wanted], abs=1e-5
        )
        for filling, other in zip(found, wanted, strict=True):
            assert filling.token == other["token_str"].removeprefix("##")
            assert filling.text.startswith(text.split("[MASK]")[0].rstrip())
            assert filling.text.endswith(text.split("[MASK]")[1])
    assert len(ours.fill(texts[0])) == 5
    for wrong in ("no mask", "[MASK] [MASK]"):
        with pytest.raises(DataError, match=re.escape(f"{wrong!r} has")):
            ours.fill([texts[0], wrong])


def test_fill_where_tokens_carry_their_space(tmp_path: Path) -> None:
    """RoBERTa's mask takes the space before it, and its tokens bring their own."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [(letter, "o") for letter in "Ġdn"]
    tokens = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        *letters,
        *("".join(pair) for pair in merged),
        "<mask>",
    ]
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=len(tokens),
        hidden_size=24,
        intermediate_size=30,
        num_hidden_layers=2,
        num_attention_heads=3,
        max_position_embeddings=40,
    )
    model = transformers.RobertaForMaskedLM(config)
    torch.nn.init.normal_(model.lm_head.bias)
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text(
        "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in merged) + "\n"
    )
    theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path)
    theirs.mask_token = transformers.AddedToken("<mask>", lstrip=True)
    theirs.save_pretrained(tmp_path)
    ours = reader(tmp_path)
    text = "do <mask> no"
    wanted = pipeline("fill-mask", tmp_path, top_k=len(tokens))(text)
    found = ours.fill(text, top=len(tokens))
    assert [f.probability for f in found] == pytest.approx([w["score"] for w in wanted], abs=1e-5)
    texts = {f.token: f.text for f in found}
    assert texts["n"] == "don no"
    assert texts["o"] in ("doo no", "do o no")  # Ġo and o are both there
    assert {"doo no", "do o no"} <= {f.text for f in found}
    assert "o no" in {f.text for f in ours.fill("<mask> no", top=len(tokens))}


# ------------------------------------------------------------------ questions


def best_span(place: Path, question: str, context: str) -> tuple[str, float, float]:
    """One window, by hand: the product of both probabilities, over the context and the
    first token.
    """
    tokenizer = transformers.BertTokenizer.from_pretrained(place)
    model = transformers.BertForQuestionAnswering.from_pretrained(place).eval()
    batch = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets, sequences = batch.pop("offset_mapping")[0].tolist(), batch.sequence_ids(0)
    with torch.inference_mode():
        out = model(**batch)
    allowed = torch.tensor([i == 0 or s == 1 for i, s in enumerate(sequences)])
    starts, ends = (
        x[0].masked_fill(~allowed, -1e9).softmax(-1) for x in (out.start_logits, out.end_logits)
    )
    spans = [
        (float(starts[a] * ends[b]), a, b)
        for a in range(len(offsets))
        for b in range(a, min(a + 30, len(offsets)))
    ]
    score, a, b = max(span for span in spans if sequences[span[1]] == sequences[span[2]] == 1)
    return context[offsets[a][0] : offsets[b][1]], score, float(starts[0] * ends[0])


def test_answer(tmp_path: Path) -> None:
    ours = reader(folder(tmp_path, "ForQuestionAnswering"))
    questions, contexts = ["Who runs?", "dog?"], TEXTS[:2]
    found = ours.answer(questions, contexts)
    for question, context, answer in zip(questions, contexts, found, strict=True):
        text, score, none = best_span(tmp_path, question, context)
        assert answer.text == text == context[answer.start : answer.end]
        assert (answer.probability, answer.none) == (
            pytest.approx(score, abs=1e-5),
            pytest.approx(none, abs=1e-5),
        )
    assert ours.answer(questions[1], contexts[1]).text == found[1].text


def test_a_long_context_is_read_in_parts(tmp_path: Path) -> None:
    """What stands where no window but a later one reaches can be found."""
    ours = reader(folder(tmp_path, "ForQuestionAnswering"))
    context = "the dog runs over the fox. " * 10 + "lazy jumping"
    answer = ours.answer("Who?", context)
    assert context[answer.start : answer.end] == answer.text != ""
    assert len(ours.tokenizer.windows("Who?", context, 40, 10)) > 2
    with pytest.raises(DataError, match="shorter first"):
        ours.answer("Who? " * 30, context)


# ------------------------------------------------------------------ what is missing


def test_a_head_that_is_not_there(tmp_path: Path) -> None:
    ours = reader(folder(tmp_path, "ForMaskedLM"))
    for ask in (ours.classify, ours.tag, ours.detect):
        with pytest.raises(ModelError, match="it can: embed, fill"):
            ask("dog")
    with pytest.raises(ModelError, match="answer"):
        ours.answer("a", "b")
    with pytest.raises(ModelError, match="follows"):
        ours.follows("a", "b")
    tagger = reader(folder(tmp_path / "tags", "ForTokenClassification"))
    with pytest.raises(ModelError, match="it can: embed, tag"):
        tagger.fill("the [MASK]")


def test_without_a_tokenizer_a_model_is_called_with_ids(tmp_path: Path) -> None:
    folder(tmp_path, "Model")
    for path in [
        *tmp_path.glob("tokenizer*"),
        *tmp_path.glob("vocab*"),
        *tmp_path.glob("special*"),
    ]:
        path.unlink()
    ours = reader(tmp_path)
    assert ours(input_ids=torch.tensor([[1, 2, 3]])).last_hidden_state.shape == (1, 3, 24)
    (tmp_path / "spiece.model").write_bytes(b"x")
    with pytest.raises(DataError, match="SentencePiece"):
        ours.embed("dog")


def test_a_reader_made_in_memory_is_saved_with_its_tokenizer(tmp_path: Path) -> None:
    first = reader(folder(tmp_path / "theirs", "ForSequenceClassification"))
    made = TextEncoder(first.model, first.spec, first.tokenizer, first.config)
    made.save(tmp_path / "ours")
    again = reader(tmp_path / "ours")
    for found, wanted in zip(again.classify(TEXTS), first.classify(TEXTS), strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert theirs(TEXTS[1])["input_ids"] == first.tokenizer.encode_with_template(TEXTS)[1].ids
    assert (theirs.pad_token_id, theirs.mask_token_id) == (0, 4)
