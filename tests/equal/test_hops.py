"""The end-to-end memory network: its equations in a loop, padding, what is recorded, and a task that it learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.context import Context
from regard.core.probe import Probe
from regard.families import folder as folders
from regard.lab.show.modules import summarize
from regard.system.errors import ModelError
from regard.wirings.baselines.memory_network import MemoryNetwork

SPEC = spec.MemoryNetwork(6, 15, hops=3, sentences=4)


def made(seed: int = 0) -> MemoryNetwork:
    torch.manual_seed(seed)
    model = build(SPEC).double()
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    return model


def test_it_is_its_equations_and_padding_changes_nothing() -> None:
    model, d = made(), 6
    story, question = torch.randint(1, 15, (2, 5, 4)), torch.randint(1, 15, (2, 3))
    words, asked = [[4, 2, 1, 3, 4], [3, 4, 2]], [3, 2]  # the second story has three sentences
    padding_mask = torch.zeros(2, 5, 4, dtype=torch.bool)
    for row, counts in enumerate(words):
        for i, n in enumerate(counts):
            padding_mask[row, i, :n] = True
    probe = Probe(["memory.*"])
    found = model.head(
        model(
            story,
            question,
            padding_mask,
            torch.arange(3) < torch.tensor(asked)[:, None],
            Context(probe=probe),
        )[0]
    )
    tables: list[Any] = [table.weight for table in model.hops.tables]

    def vector(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        length, total = len(ids), torch.zeros(d).double()
        for j, word in enumerate(ids.tolist(), start=1):
            for k in range(1, d + 1):
                weight = (1 - j / length) - (k / d) * (1 - 2 * j / length)
                total[k - 1] = total[k - 1] + weight * table[word, k - 1]
        return total

    for row in range(2):
        sentences = [story[row, i, :n] for i, n in enumerate(words[row])]
        u = vector(tables[0], question[row, : asked[row]])
        for hop in range(3):
            m, c = (
                torch.stack([
                    vector(tables[n], s) + model.hops.ages[n][min(len(sentences) - 1 - i, 3)]
                    for i, s in enumerate(sentences)
                ])
                for n in (hop, hop + 1)
            )  # fmt: skip
            p = torch.softmax(m @ u, dim=0)
            torch.testing.assert_close(probe.weights(f"memory.{hop}.cross")[row, 0, 0, : len(p)], p)
            u = u + p @ c
        torch.testing.assert_close(found[row], tables[3] @ u)
        alone = model(story[row : row + 1, : len(sentences)], question[row : row + 1, : asked[row]],
                      padding_mask[row : row + 1, : len(sentences)])[0]  # fmt: skip
        torch.testing.assert_close(model.head(alone)[0], found[row])


def test_size_page_and_folder(tmp_path: Path) -> None:
    assert (
        parameter_count(SPEC)
        == trainable(build(SPEC))
        == sum(module.parameters for module in summarize(SPEC))
    )
    assert spec.from_dict(json.loads(json.dumps(spec.to_dict(SPEC)))) == SPEC
    with pytest.raises(ModelError):
        spec.MemoryNetwork(6, 15, hops=0)
    model = made().float()
    (tmp_path / "config.json").write_text(json.dumps(folders.describe(SPEC)))
    folders.write_weights(tmp_path / "model.safetensors", model, SPEC)
    story, question = torch.randint(1, 15, (2, 5, 4)), torch.randint(1, 15, (2, 3))
    held = regard.load(tmp_path, device="cpu")
    torch.testing.assert_close(
        held(story=story, question=question).logits, model.head(model(story, question)[0])
    )


def test_it_learns_where_things_are() -> None:
    """Each sentence puts someone (1–4) somewhere (5–9); the question names someone; the last place counts."""
    torch.manual_seed(1)
    model = build(spec.MemoryNetwork(20, 10, hops=1, sentences=6))
    adam = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(250):
        who, where = torch.randint(1, 5, (64, 6)), torch.randint(5, 10, (64, 6))
        asked = who[torch.arange(64), torch.randint(0, 6, (64,))]
        last = torch.where(who == asked[:, None], torch.arange(6), -1).amax(dim=1)
        answer = where[torch.arange(64), last]
        scores = model.head(model(torch.stack([who, where], dim=-1), asked[:, None])[0])
        loss = torch.nn.functional.cross_entropy(scores, answer)
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert (scores.argmax(dim=-1) == answer).float().mean() > 0.9
