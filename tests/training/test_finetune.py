"""Fine-tuning tiny random models: what trains, what stays, what is written, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.data import labelled
from regard.data.corpus import Corpus
from regard.data.labelled import Question, TaggedWords
from regard.data.tag_alignment import align_tags
from regard.data.text.tokenizer_files import open_encoder_tokenizer
from regard.evaluation.scores import scored, scored_tags
from regard.families import folder as folders
from regard.models import LanguageModel, TextEncoder, Translator
from regard.system.errors import DataError, ModelError, SettingError, TrainingInterrupted
from regard.training.data.text_sources import LabelledData, answer_windows
from regard.training.engine.optimizer import LinearDecay, Optimizer, layer_multipliers
from regard.training.objectives.head_objective import TokenClassification
from regard.training.run import resume
from regard.training.run_folder import RunFolder

transformers = pytest.importorskip("transformers")

LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *".,!?'"]
VOCABULARY = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS),
    "the", "fox", "dog", "runs", "jump", "##ing", "over", "lazy",
]  # fmt: skip
NOUNS, VERBS = ("fox", "dog", "cat", "owl"), ("runs", "jumping", "sees", "naps")
SENTENCES = [
    (f"the {n} {v}", "beast" if n in ("fox", "dog") else "pet") for n in NOUNS for v in VERBS
]
QUICK: dict[str, Any] = {"threads": 1, "quiet": True, "batch_tokens": 64}
FAST = QUICK | {
    "learning_rate": 3e-3,
    "epochs": 40,
    "final_weights": "last",
    "save_every": 999,
    "validate_every": 999,
}


def base(place: Path, family: str = "Bert", task: str = "Model", **changes: Any) -> Path:
    torch.manual_seed(1)
    sizes = {
        "vocab_size": len(VOCABULARY), "hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 2,
        "num_attention_heads": 3, "max_position_embeddings": 40, "pad_token_id": 0,
    }  # fmt: skip
    inner = sizes.pop("intermediate_size")
    sizes[{"GPT2": "n_inner", "Bart": "encoder_ffn_dim"}.get(family, "intermediate_size")] = inner
    config = getattr(transformers, f"{family}Config")(**sizes, **changes)
    getattr(transformers, family + task)(config).save_pretrained(place)
    (place / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    transformers.BertTokenizer.from_pretrained(place).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.tsv"
    path.write_text("".join(f"{text}\t{label}\n" for text, label in SENTENCES))
    return path


@pytest.fixture(scope="module")
def classifier(bert: Path, sentences: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "classifier"
    regard.finetune(bert, "classify", sentences, valid=sentences, test=sentences, out=out, **FAST)
    return out


def opened(place: Path) -> TextEncoder:
    held = regard.load(place)
    assert isinstance(held, TextEncoder)
    return held


# ------------------------------------------------------------------ classes


def test_a_classifier_learns_sixteen_sentences_by_heart(classifier: Path) -> None:
    reader = opened(classifier)
    assert reader.labels == ["beast", "pet"]
    found = reader.classify([text for text, _ in SENTENCES])
    assert [next(iter(scores)) for scores in found] == [label for _, label in SENTENCES]
    lines = [json.loads(line) for line in (classifier / "metrics.jsonl").read_text().splitlines()]
    assert [line["accuracy"] for line in lines if line.get("event") == "validation"][-1] == 100.0
    assert "| test | 100.00 | 100.00 | 50.00 | 16 |" in (classifier / "README.md").read_text()


@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert", "Electra"])
def test_the_folder_opens_in_transformers(family: str, sentences: Path, tmp_path: Path) -> None:
    place = base(tmp_path / "base", family) if family != "DistilBert" else distil(tmp_path / "base")
    regard.finetune(
        place,
        "classify",
        sentences,
        out=tmp_path / "run",
        **QUICK | {"epochs": 1, "learning_rate": 0.01},
    )
    auto = transformers.AutoModelForSequenceClassification
    theirs, report = auto.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert theirs.config.id2label == {0: "beast", 1: "pet"}
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    batch = words(["the fox runs", "lazy"], padding=True, return_tensors="pt")
    if family in ("Roberta", "DistilBert"):
        batch.pop("token_type_ids", None)
    with torch.inference_mode():
        wanted = theirs.eval()(**batch).logits
        found = regard.load(tmp_path / "run")(**batch).logits
    assert (found - wanted).abs().max() <= 1e-5


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_a_language_model_learns_to_judge(family: str, sentences: Path, tmp_path: Path) -> None:
    """The vocabulary goes, the last token is judged; what is written opens in transformers."""
    place = base(tmp_path / "base", family, "ForCausalLM" if family == "Llama" else "LMHeadModel")
    regard.finetune(place, "classify", sentences, out=tmp_path / "run", **FAST)
    reader = opened(tmp_path / "run")
    texts = [text for text, _ in SENTENCES]
    assert [next(iter(scores)) for scores in reader.classify(texts)] == [
        label for _, label in SENTENCES
    ]
    theirs, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "run", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    rows = [reader.tokenizer.input_ids(text) for text in ("the fox runs", "lazy")]
    ids = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    with torch.inference_mode():
        wanted = theirs.eval()(input_ids=ids, attention_mask=(ids != 0).long()).logits
        assert (reader(input_ids=ids).logits - wanted).abs().max() <= 1e-5
    again = tmp_path / "again"
    regard.finetune(
        tmp_path / "run", "classify", sentences, out=again, **QUICK | {"epochs": 1, "lora": 2}
    )
    assert opened(again).labels == ["beast", "pet"]
    model = regard.load(place)
    data = LabelledData([], {}, ["a", "b"], model.tokenizer)
    setup: Any = SimpleNamespace(recipe=SimpleNamespace(train=SimpleNamespace(seed=0)))
    tagger = TokenClassification.adapt(model, data, setup)
    assert tagger.config["architectures"] == [f"{family}ForTokenClassification"]


def distil(place: Path) -> Path:
    base(place)
    torch.manual_seed(1)
    config = transformers.DistilBertConfig(
        vocab_size=len(VOCABULARY),
        dim=24,
        hidden_dim=30,
        n_layers=2,
        n_heads=3,
        max_position_embeddings=40,
    )
    transformers.DistilBertModel(config).save_pretrained(place)
    return place


def test_a_classifier_believes_its_teacher(bert: Path, classifier: Path, tmp_path: Path) -> None:
    """With the teacher's word alone, all labels wrong are all answers right; of other labels, no teacher is taken."""
    wrong = tmp_path / "wrong.tsv"
    wrong.write_text(
        "".join(f"{text}\t{'pet' if label == 'beast' else 'beast'}\n" for text, label in SENTENCES)
    )
    taught: dict[str, Any] = {"teacher": str(classifier), "distillation_weight": 1.0}
    regard.finetune(bert, "classify", wrong, out=tmp_path / "run", **FAST, **taught)
    found = opened(tmp_path / "run").classify([text for text, _ in SENTENCES])
    assert [next(iter(scores)) for scores in found] == [label for _, label in SENTENCES]
    wrong.write_text(wrong.read_text().replace("pet", "animal"))
    with pytest.raises(ModelError, match="the teacher knows the labels"):
        regard.finetune(bert, "classify", wrong, out=tmp_path / "other", **FAST, **taught)


def test_pairs_of_texts_and_json(bert: Path, tmp_path: Path) -> None:
    rows = [
        {"text": "the fox", "text2": text, "label": i % 3} for i, (text, _) in enumerate(SENTENCES)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    regard.finetune(bert, "classify", path, out=tmp_path / "run", **QUICK | {"epochs": 1})
    assert set(opened(tmp_path / "run").classify(("the fox", "runs"))) == {"0", "1", "2"}


def test_a_head_for_other_labels_is_replaced_and_said(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "other.tsv"
    data.write_text("".join(f"{text}\t{label}s\n" for text, label in SENTENCES))
    loud = QUICK | {"quiet": False, "epochs": 1}
    regard.finetune(classifier, "classify", data, out=tmp_path / "run", **loud)
    assert "classes beast, pet are not among" in capsys.readouterr().err


def test_a_header_is_no_class(bert: Path, sentences: Path, tmp_path: Path) -> None:
    data = tmp_path / "header.tsv"
    data.write_text("review\tsentiment\n" + sentences.read_text())
    with pytest.raises(DataError, match="looks like a header"):
        regard.finetune(bert, "classify", data, out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_a_head_for_these_labels_is_kept(classifier: Path, sentences: Path, tmp_path: Path) -> None:
    regard.finetune(
        classifier,
        "classify",
        sentences,
        out=tmp_path / "run",
        **QUICK | {"epochs": 1, "warmup_ratio": 0.0},
    )
    found = opened(tmp_path / "run").classify([text for text, _ in SENTENCES])
    assert [next(iter(scores)) for scores in found] == [label for _, label in SENTENCES]


@pytest.mark.parametrize(
    "changes",
    [{}, {"lora": 2, "lora_dropout": 0.1, "final_weights": "average:2", "validate_every": 2}],
)
def test_resumed_equals_uninterrupted(
    bert: Path,
    sentences: Path,
    tmp_path: Path,
    stop_at: Callable[[int], Any],
    changes: dict[str, Any],
) -> None:
    settings = FAST | {"epochs": 3, "save_every": 2, "layer_decay": 0.8} | changes
    regard.finetune(
        bert, "classify", sentences, valid=sentences, out=tmp_path / "whole", **settings
    )
    with pytest.raises(TrainingInterrupted):
        regard.finetune(
            bert,
            "classify",
            sentences,
            valid=sentences,
            out=tmp_path / "cut",
            on_step=stop_at(3),
            **settings,
        )
    resume(tmp_path / "cut", quiet=True)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# ------------------------------------------------------------------ what trains


def test_frozen_blocks_stay_bit_for_bit(bert: Path, sentences: Path, tmp_path: Path) -> None:
    regard.finetune(
        bert, "classify", sentences, out=tmp_path / "run", **FAST | {"epochs": 2, "freeze": 1}
    )
    before, after = folders.read(bert).weights, folders.read(tmp_path / "run").weights
    for name, tensor in before.items():
        low = name.startswith(("input.", "stack.blocks.0."))
        assert torch.equal(tensor, after[name]) == low, name


def test_low_rank_changes_are_merged(bert: Path, sentences: Path, tmp_path: Path) -> None:
    regard.finetune(
        bert, "classify", sentences, out=tmp_path / "run", **FAST | {"epochs": 4, "lora": 2}
    )
    before, after = folders.read(bert).weights, folders.read(tmp_path / "run").weights
    for name, tensor in before.items():
        changed = name.endswith("qkv.weight") or name.startswith("pool.")
        assert torch.equal(tensor, after[name]) != changed, name
    name = "stack.blocks.1.attention.project.qkv.weight"
    assert torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-4) == 2
    # A damaged folder is not filled up with weights that lack the changes.
    (tmp_path / "run" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(regard.system.errors.CheckpointError):
        regard.load(tmp_path / "run")


def test_layer_wise_rates_by_hand(bert: Path) -> None:
    model, _ = folders.open_model(bert)
    shares = layer_multipliers(model, 0.5)
    assert shares["pool.dense.weight"] == 1.0
    assert shares["stack.blocks.1.feedforward.inner.bias"] == 0.5
    assert shares["stack.blocks.0.attention.output.weight"] == 0.25
    assert shares["input.table.weight"] == shares["input.norm.bias"] == 0.125
    optimizer = Optimizer(model.named_parameters(), LinearDecay(1.0, 2, 4), lr_multipliers=shares)
    optimizer.set_learning_rate(4)  # 1/3 of the peak
    found = {
        id(p): float(group["lr"]) for group in optimizer.adam.param_groups for p in group["params"]
    }
    assert len(found) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert found[id(parameter)] == pytest.approx(shares[name] / 3), name


def test_a_linear_schedule() -> None:
    curve = LinearDecay(6.0, 2, 4)
    assert [curve(step) for step in range(1, 6)] == [3.0, 6.0, 4.0, 2.0, 0.0]


def test_more_blocks_than_there_are(bert: Path, sentences: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there are 2"):
        regard.finetune(bert, "classify", sentences, out=tmp_path / "run", **QUICK | {"freeze": 3})
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------ bad data


@pytest.mark.parametrize(
    ("train", "valid", "message"),
    [
        ("the fox\tyes\na dog\tyes\n", None, "only one label"),
        ("the fox\tyes\na dog\tno\n", "the fox\tmaybe\n", "'maybe' is not in the training data"),
        ("the fox\tyes\na dog\n", None, "line 2 has 1 columns"),
        ("the fox\tyes\na dog\t\n", None, "line 2: 'label' is missing"),
        ("", None, "empty"),
    ],
)
def test_bad_classes(
    bert: Path, tmp_path: Path, train: str, valid: str | None, message: str
) -> None:
    (tmp_path / "train.tsv").write_text(train)
    (tmp_path / "valid.tsv").write_text(valid or "")
    more: dict[str, Any] = {"valid": tmp_path / "valid.tsv"} if valid else {}
    with pytest.raises(DataError, match=message):
        regard.finetune(
            bert, "classify", tmp_path / "train.tsv", out=tmp_path / "run", **QUICK, **more
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("classify", {"text": "a"}, "'label' is missing"),
        ("classify", {"label": "a"}, "'text' is missing"),
        ("tag", {"tokens": ["a", "b"], "tags": ["O"]}, "2 tokens and 1 tags"),
        (
            "answer",
            {"question": "a", "context": "b c", "text": "c", "answer_start": 1},
            "not at character 1",
        ),
        ("answer", {"question": "a", "context": "b", "text": "b"}, "'answer_start' is missing"),
    ],
)
def test_bad_lines(tmp_path: Path, task: str, line: dict[str, Any], message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(line) + "\n")
    readers: dict[str, Any] = {
        "classify": labelled.labelled_texts,
        "tag": labelled.tagged_words,
        "answer": labelled.questions,
    }
    with pytest.raises(DataError, match=message):
        list(readers[task](path))


def test_the_wrong_model(bert: Path, sentences: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model for translate"):
        regard.finetune(bert, "translate", sentences, out=tmp_path / "run", **QUICK)
    with pytest.raises(SettingError, match="bleu is not a score of classify"):
        regard.finetune(bert, "classify", sentences, out=tmp_path / "run", metric="bleu", **QUICK)
    with pytest.raises(SettingError, match="layer_decay"):
        regard.finetune(bert, "classify", sentences, out=tmp_path / "run", layer_decai=1, **QUICK)


# ------------------------------------------------------------------ tags


def test_the_first_token_of_a_word_has_its_tag(bert: Path) -> None:
    words = TaggedWords(
        ["The", "fox", "jumping", "over", "zoe's", "dog"], ["O", "B-A", "O", "P", "B-P", "I-P"]
    )
    ((row, tags),) = align_tags(open_encoder_tokenizer(bert), [words])
    pieces = dict(zip(row.tokens, tags, strict=True))
    assert row.tokens[:5] == ["[CLS]", "the", "fox", "jump", "##ing"]
    assert [tag for tag in tags if tag] == words.tags
    assert pieces["jump"] == "O"
    assert pieces["##ing"] is None
    assert pieces["z"] == "B-P"
    assert pieces["'"] is None
    assert tags[0] is None
    assert tags[-1] is None


def test_a_tagger(bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.conll"
    lines = [[("the", "O"), (n, "B-ANIMAL"), (v, "O")] for n in NOUNS for v in VERBS]
    path.write_text(
        "-DOCSTART- O\n\n" + "\n".join("".join(f"{w} x {t}\n" for w, t in line) for line in lines)
    )
    result = regard.finetune(bert, "tag", path, test=path, out=tmp_path / "run", **FAST)
    assert result.scores["test"].f1 == 100.0  # type: ignore[union-attr]
    assert [e.text for e in opened(tmp_path / "run").entities("the owl jumping")] == ["owl"]
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "run")
    assert theirs.config.id2label == {0: "B-ANIMAL", 1: "O"}


# ------------------------------------------------------------------ answers


def test_windows_find_the_span(bert: Path) -> None:
    context = "the lazy dog naps. " * 6 + "'a fox' runs over the dog"
    example = Question("who runs?", context, context.index("a fox"), "a fox")
    rows = answer_windows(open_encoder_tokenizer(bert), example, 24)
    assert len(rows) > 2
    inside = [(row, span) for row, span in rows if span != (0, 0)]
    assert inside
    for row, (first, last) in inside:
        assert row.tokens[first : last + 1] == ["a", "fox"]
        assert context[row.offsets[first][0] : row.offsets[last][1]] == "a fox"
    assert {
        span
        for _, span in answer_windows(
            open_encoder_tokenizer(bert), Question("who?", context, 0, ""), 24
        )
    } == {(0, 0)}


def test_a_finder_of_answers(bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "squad.jsonl"
    rows = []
    for noun in NOUNS:
        for verb in VERBS:
            context = f"the {noun} {verb} over the tree"
            rows.append(
                {
                    "question": "who?",
                    "context": context,
                    "answers": {"text": [noun], "answer_start": [4]},
                }
            )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = regard.finetune(bert, "answer", path, test=path, out=tmp_path / "run", **FAST)
    assert result.scores["test"].exact_match >= 90.0  # type: ignore[union-attr]
    transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "run")


# ------------------------------------------------------------------ pairs and text


TEXT = "".join(f"The {n} {v}.\nThen it {v} too.\n\n" for n in NOUNS for v in VERBS) * 3
SMALL: dict[str, Any] = {
    "preset": "tiny", "d_model": 32, "d_ff": 48, "heads": 2, "layers": 1, "context": 32, "steps": 2, "warmup_steps": 1,
    "threads": 1, "vocabulary": 400, "tokenizer": "bpe", "samples": 0, "learning_rate": 0.001, "batch_tokens": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text(TEXT)
    return path


def test_t5_learns_several_tasks_by_prefix(text: Path, tmp_path: Path) -> None:
    regard.train({**SMALL, "text": str(text), "objective": "span"}, out=tmp_path / "t5")
    pairs = [f"{n} {v}" for n in NOUNS for v in VERBS]
    (tmp_path / "copy.tsv").write_text("".join(f"{p}\t{p}\n" for p in pairs))
    (tmp_path / "first.tsv").write_text("".join(f"{p}\t{p.split()[0]}\n" for p in pairs))
    files, prefixes = [tmp_path / "copy.tsv", tmp_path / "first.tsv"], ["copy: ", "first: "]
    out = tmp_path / "run"
    regard.finetune(
        tmp_path / "t5",
        "translate",
        files,
        prefixes=prefixes,
        out=out,
        **FAST | {"epochs": 20, "learning_rate": 0.02},
    )
    corpus = Corpus.open(RunFolder(out).data / "train")
    translator: Any = regard.load(out)
    decode = translator.source_tokenizer.decode
    kept = [decode(corpus.source(row).tolist()[:-1]) for row in range(len(corpus))]
    assert {"copy: fox runs", "first: fox runs"} <= set(kept)
    assert len(kept) == 32
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "event" not in line]
    assert losses[-1] < 0.5 * losses[0]
    assert isinstance(regard.load(out), Translator)
    transformers.T5ForConditionalGeneration.from_pretrained(out)
    with pytest.raises(SettingError, match="1 prefixes for 2 files"):
        regard.finetune(
            tmp_path / "t5", "translate", files, prefixes=["a"], out=tmp_path / "other", **QUICK
        )


def test_an_encoder_decoder_without_a_head_learns_to_write(tmp_path: Path) -> None:
    """The head of BartModel is tied, as that of the released BART is."""
    sizes: dict[str, Any] = {"decoder_layers": 1, "decoder_attention_heads": 3, "eos_token_id": 3}
    bart = base(tmp_path / "bart", "Bart", decoder_start_token_id=3, **sizes)
    (tmp_path / "pairs.tsv").write_text("".join(f"{n}\t{n}\n" for n in NOUNS))
    out = tmp_path / "run"
    assert isinstance(regard.load(bart), TextEncoder)
    regard.finetune(bart, "translate", tmp_path / "pairs.tsv", out=out, **QUICK, epochs=1)
    assert isinstance(regard.load(out), Translator)
    transformers.BartForConditionalGeneration.from_pretrained(out)


def test_a_language_model_goes_on(text: Path, tmp_path: Path) -> None:
    regard.train(
        {**SMALL, "text": str(text), "objective": "causal", "steps": 20}, out=tmp_path / "gpt"
    )
    options = QUICK | {
        "epochs": 2,
        "learning_rate": 3e-3,
        "lora": 4,
        "lora_in": "all",
        "samples": 0,
    }
    regard.finetune(tmp_path / "gpt", "lm", text, out=tmp_path / "run", **options)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    checked = [line["loss"] for line in lines if line.get("event") == "validation"]
    assert checked[-1] < checked[0]
    assert isinstance(regard.load(tmp_path / "run"), LanguageModel)
    transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "run")


# ------------------------------------------------------------------ scores


def test_scores_by_hand() -> None:
    assert scored("classify", ["a", "a", "b", "b"], ["a", "b", "b", "b"]).accuracy == 75.0
    assert scored("classify", ["a", "a", "b", "b"], ["a", "b", "b", "b"]).f1 == pytest.approx(
        100 * (2 / 3 + 4 / 5) / 2
    )
    spans = scored_tags([["B-X", "I-X", "O"], ["B-Y", "O"]], [["B-X", "I-X", "O"], ["B-Y", "I-Y"]])
    assert spans.f1 == pytest.approx(50.0)
    assert spans.accuracy == pytest.approx(80.0)
    answers = scored("answer", ["The fox!", "a dog runs"], ["fox", "dog"])
    assert answers.exact_match == 50.0
    assert answers.f1 == pytest.approx(100 * (1 + 2 / 3) / 2)
