"""Low-rank edits: they start as nothing, train alone, and fold in exactly."""

from __future__ import annotations

import pytest
import torch

from regard.builder import build, edit, trainable
from regard.core.linear import Linear
from regard.families.encoders import bert
from regard.system.errors import SettingError
from regard.wirings.encoder import Encoder


def encoder() -> Encoder:
    torch.manual_seed(3)
    return build(bert.preset("tiny", 50, 32, d_model=24, d_ff=40, heads=3, layers=2)).eval()


def stirred(model: Encoder) -> Encoder:
    """As after some training."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".added." in name:
                parameter.normal_(std=0.3)
    return model


@pytest.mark.parametrize("which", [edit.PROJECTIONS, ("all",), ("output", "inner")])
def test_merged_equals_unmerged(which: tuple[str, ...]) -> None:
    model, tokens = encoder().requires_grad_(False), torch.randint(50, (3, 9))
    before = model(tokens)[0]
    names = edit.lora(model, rank=3, alpha=5.0, which=which)
    torch.testing.assert_close(model(tokens)[0], before, rtol=0, atol=0)
    assert names
    assert all(name.startswith("stack.") for name in names)
    apart = stirred(model)(tokens)[0]
    assert (apart - before).abs().max() > 0.01
    edit.merge(model)
    assert not [name for name, _ in model.named_parameters() if ".added." in name]
    assert (model(tokens)[0] - apart).abs().max() <= 1e-6 * max(
        1.0, float(apart.detach().abs().max())
    )


def test_only_the_changes_train() -> None:
    model = encoder()
    edit.lora(model, rank=2)
    assert trainable(model) == 2 * 2 * (
        24 + 72
    )  # layers · rank · (inputs + outputs of q, k and v together)
    assert all(p.requires_grad == (".added." in name) for name, p in model.named_parameters())


def test_freezing_merges_first() -> None:
    model, tokens = encoder(), torch.randint(50, (2, 5))
    edit.lora(model, rank=2, which=["all"])
    wanted = stirred(model)(tokens)[0]
    edit.pack_weights(model)
    torch.testing.assert_close(model(tokens)[0], wanted, rtol=0, atol=1e-5)


def test_what_cannot_be_changed_is_said() -> None:
    with pytest.raises(SettingError, match="outptu"):
        edit.lora(encoder(), rank=2, which=["outptu"])
    with pytest.raises(SettingError, match="rank 0"):
        edit.lora(encoder(), rank=0)
    model = encoder()
    edit.lora(model, rank=1, which=["qkv"])
    assert sum(isinstance(m, Linear) and m.added is not None for m in model.modules()) == 2
