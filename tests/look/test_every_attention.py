"""Each attention explains itself: which keys a query could see, and the weights it effectively gave them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from looked import TEXT, translator
from regard.core.context import Context
from regard.core.probe import Probe
from regard.core.projection import per_query_head
from regard.look import entropy

WORDS = [
    "softmax", "window:2", "dilated:2:2", "strided:3", "blocks:2", "longformer:1", "bigbird:2", "topk:2", "linear",
    "performer", "linformer:3", "reformer:4:4",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_effective_weights_and_what_could_be_seen(word: str) -> None:
    """Weights times values is what was mixed; where nothing could be seen there is no weight."""
    model = translator(attention=word, decoder_attention="softmax").model.double().eval()
    probe = Probe(["encoder.*"])
    model.encode(torch.randint(4, 60, (2, 13)), context=Context(probe=probe))
    rows = torch.arange(13)
    for name, call in probe.attentions.items():
        weights = call.weights()
        if name.endswith(".global"):
            continue  # its rows are those of the attention around it
        mixed = weights @ per_query_head(call.v, call.q.shape[1])
        if call.global_call is not None and call.global_rows is not None:
            # Longformer: global tokens have keys and values of their own.
            of_global = weights @ per_query_head(call.global_call.v, call.q.shape[1])
            mixed = torch.where(call.global_rows[:, None, :, None], of_global, mixed)
        torch.testing.assert_close(mixed, probe.tensors[f"{name}.mixed"], rtol=1e-6, atol=1e-6)
        allowed = call.visible(rows).expand_as(weights)
        assert (weights[~allowed] == 0).all()
        assert allowed.diagonal(dim1=-2, dim2=-1).all()


@pytest.mark.parametrize("word", WORDS)
def test_entropies_are_told_of_every_kind(word: str) -> None:
    result = entropy(translator(attention=word, decoder_attention="softmax").look(TEXT))
    assert np.isfinite(result.nats).all()
    assert (result.nats >= 0).all()
