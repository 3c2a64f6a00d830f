"""What a model is made of, as plain frozen data.

A choice is a type that carries its own options; a union lists what may stand in a place. `build.build` turns a spec into
modules, `size.parameters` counts it without building it, `to_dict`/`from_dict` write it as JSON with a closed schema.
Nothing here imports torch or knows a family's name.
"""

from __future__ import annotations

from typing import Literal  # noqa: F401 (the annotations of all kinds are read with the names of this file)

# isort: off
# fmt: off
from regard.spec.attention import Attention, Chunks, Elu, Favor, Linear, Linformer, Lsh, Mixer, Ring, Softmax, Twice
from regard.spec.feedforward import Activation, Experts, FeedForward, Gated, Plain
from regard.spec.head import End, Labels, LanguageHead, Pool, Task, Transform, Votes
from regard.spec.input import Convolution, Frames, Input, Nearby, Patches, TimeNorm, Tokens, Waves
from regard.spec.model import (
    Decoder, Encoder, EncoderDecoder, MemoryNetwork, Model, Pair, RecurrentDecoder, SequenceToSequence,
)
from regard.spec.pattern import (
    Beyond, BlockLocal, Both, Causal, Dilated, Either, Everything, Global, Opposite, Pattern, RandomBlocks, Strided, Window,
    causal, counts_from_the_end,
)
from regard.spec.plain import _KINDS, from_dict, to_dict
from regard.spec.position import (
    Alibi, Axial, Banded, Buckets, Concatenated, Disentangled, Fixed, InputPosition, Learned, RelativeKeys,
    RelativeSinusoids, Repeated, Rope, RopeScaling, Sinusoidal, StackPosition, Stretched,
)
from regard.spec.recurrent import (
    Additive, Convolved, Dot, GatedUnit, General, LooksAfter, LooksBefore, NarrowUnit, Recurrent, ScaledDot, Score,
)
from regard.spec.residual import LayerNorm, Norm, Parallel, PostNorm, PreNorm, Residual, Reversible, RmsNorm
from regard.spec.stack import Block, Compressed, Neighbours, Stack, Universal, fewer, prunable, with_heads
# fmt: on
# isort: on

__all__ = [
    "Activation", "Additive", "Alibi", "Attention", "Axial", "Banded", "Beyond", "Block", "BlockLocal", "Both", "Buckets",
    "Causal", "Chunks", "Compressed", "Concatenated", "Convolution", "Convolved", "Decoder", "Dilated", "Disentangled",
    "Dot", "Either", "Elu", "Encoder", "EncoderDecoder", "End", "Everything", "Experts", "Favor", "FeedForward", "Fixed",
    "Frames", "Gated", "GatedUnit", "General", "Global", "Input", "InputPosition", "Labels", "LanguageHead", "LayerNorm",
    "Learned", "Linear", "Linformer", "LooksAfter", "LooksBefore", "Lsh", "MemoryNetwork", "Mixer", "Model", "NarrowUnit",
    "Nearby", "Neighbours", "Norm", "Opposite", "Pair", "Parallel", "Patches", "Pattern", "Plain", "Pool", "PostNorm",
    "PreNorm", "RandomBlocks", "Recurrent", "RecurrentDecoder", "RelativeKeys", "RelativeSinusoids", "Repeated", "Residual",
    "Reversible", "Ring", "RmsNorm", "Rope", "RopeScaling", "ScaledDot", "Score", "SequenceToSequence", "Sinusoidal",
    "Softmax", "Stack", "StackPosition", "Stretched", "Strided", "Task", "TimeNorm", "Tokens", "Transform", "Twice",
    "Universal", "Votes", "Waves", "Window", "causal", "counts_from_the_end", "fewer", "from_dict", "prunable", "to_dict",
    "with_heads",
]  # fmt: skip

# A kind is called `regard.spec.Softmax`, in errors and pickles too, whichever file of the room it is written in.
for _kind in _KINDS.values():
    _kind.__module__ = __name__
