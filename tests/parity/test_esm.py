"""ESM-2 against transformers: its tokenizer, its contacts, and files of earlier versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.models import TextEncoder
from regard.system.errors import DataError, ModelError
from zoo import perturb

transformers = pytest.importorskip("transformers")

# esm2_t6_8M_UR50D's.
TOKENS = [
    "<cls>",
    "<pad>",
    "<eos>",
    "<unk>",
    "L",
    "A",
    "G",
    "V",
    "S",
    "E",
    "R",
    "T",
    "I",
    "D",
    "P",
    "K",
    "Q",
    "N",
    "F",
    "Y",
    "M",
    "H",
    "W",
    "C",
    "X",
    "B",
    "U",
    "Z",
    "O",
    ".",
    "-",
    "<null_1>",
    "<mask>",
]
PROTEIN = "MKTAYIAKQRQISFVKSHFSRQLEERLG"


def saved(folder: Path, task: str = "ForMaskedLM") -> Any:
    """Their model with a tokenizer, as the released folders have it."""
    torch.manual_seed(0)
    config = transformers.EsmConfig(
        vocab_size=33,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=30,
        position_embedding_type="rotary",
        token_dropout=True,
        pad_token_id=1,
        mask_token_id=32,
    )
    config._attn_implementation = "eager"
    model = getattr(transformers, f"Esm{task}")(config).eval()
    perturb(model)
    model.save_pretrained(folder)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(TOKENS))
    transformers.EsmTokenizer(str(vocabulary)).save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    "text",
    [PROTEIN, " ".join(PROTEIN), "MK<mask>AY", "mk J MJJK", "M.K-X", "", "<mask> <mask>K"],
)
def test_residues_have_the_same_ids(text: str, tmp_path: Path) -> None:
    saved(tmp_path)
    theirs = transformers.EsmTokenizer.from_pretrained(tmp_path)
    model = regard.load(tmp_path, TextEncoder)
    assert model.tokens(text)["input_ids"][0].tolist() == theirs(text)["input_ids"]
    [pair] = model.tokenizer.encode_with_template([("MK", text)], None)
    assert pair.ids == theirs("MK", text)["input_ids"]


def test_contacts_are_theirs(tmp_path: Path) -> None:
    theirs = saved(tmp_path)
    ids = transformers.EsmTokenizer.from_pretrained(tmp_path)(PROTEIN, return_tensors="pt")
    expected = theirs.predict_contacts(ids["input_ids"], ids["attention_mask"])[0]
    model = regard.load(tmp_path, TextEncoder)
    torch.testing.assert_close(model.contacts(PROTEIN), expected.detach(), rtol=0, atol=1e-5)
    (tmp_path / "bert").mkdir()
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=33, intermediate_size=30, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(TOKENS))
    with pytest.raises(ModelError):
        regard.load(tmp_path / "bert", TextEncoder).contacts(PROTEIN)


def test_frequencies_of_a_file_count(tmp_path: Path) -> None:
    """The released files have them in every layer, rounded to half precision in training."""
    theirs = saved(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    star = "esm.encoder.layer.*.attention.self.rotary_embeddings.inv_freq"
    rounded = tensors.pop(star).half().float() * 1.01
    names = [star.replace("*", str(i)) for i in range(3)]
    save_file({**tensors, **{name: rounded.clone() for name in names}}, file)
    theirs.esm.rotary_embeddings.inv_freq.copy_(rounded)
    model = regard.load(tmp_path, TextEncoder)
    inputs = model.tokens([PROTEIN, PROTEIN[:9]])
    with torch.inference_mode():
        expected = theirs(**inputs).logits
        logits = model(**inputs).logits
    visible = inputs["attention_mask"].bool()
    torch.testing.assert_close(logits[visible], expected[visible], rtol=0, atol=2e-5)


def test_mutations_are_scored_by_masked_marginals(tmp_path: Path) -> None:
    """log p(mutant) − log p(wild type) of transformers, where the wild type alone is masked."""
    theirs = saved(tmp_path / "theirs")
    tokenizer = transformers.EsmTokenizer.from_pretrained(tmp_path / "theirs")
    variants = [(3, "W"), (3, "G"), (10, "F"), (20, "A")]
    texts = [PROTEIN[:i] + letter + PROTEIN[i + 1 :] for i, letter in variants]
    both = texts[0][:10] + "F" + texts[0][11:]  # two at once: the sum
    expected = []
    for place, letter in variants:
        masked = tokenizer(PROTEIN, return_tensors="pt")["input_ids"]
        masked[0, place + 1] = tokenizer.mask_token_id  # behind <cls>
        with torch.no_grad():
            log_p = theirs(masked).logits[0, place + 1].log_softmax(dim=-1)
        new, old = (TOKENS.index(residue) for residue in (letter, PROTEIN[place]))
        expected.append((log_p[new] - log_p[old]).item())
    expected = [*expected, expected[0] + expected[2], 0.0, 0.0]
    rows = [(" ".join(text), float(i)) for i, text in enumerate([*texts, both, PROTEIN, PROTEIN])]
    found = regard.evaluate(tmp_path / "theirs", rows, task="mutations")
    outputs = found.results["spearman"].outputs
    assert outputs.values == pytest.approx(expected, abs=1e-5)
    ranks = [sorted(expected).index(one) for one in expected]
    assert found["spearman"] == pytest.approx(scipy_spearman(ranks), abs=1e-4)
    with pytest.raises(DataError, match="substitutions"):
        regard.evaluate(tmp_path / "theirs", [*rows, ("M K", 1.0)], task="mutations")


def scipy_spearman(values: list[Any]) -> float:
    """Spearman's ρ of values and their places."""
    from scipy import stats

    return float(stats.spearmanr(values, range(len(values))).statistic)
