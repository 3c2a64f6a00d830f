"""Specs: the architecture of a model as frozen dataclasses.

Each choice is a class with its own options, and a union lists the alternatives. `builder.build`
turns a spec into modules, `parameter_count` counts its weights on the meta device, and
`to_dict`/`from_dict` serialize it to JSON with a closed schema.
Nothing here imports torch or depends on a family of models.

"Section 3.2" and the like, without a paper's name, are of Vaswani et al. 2017, "Attention Is All
You Need".
"""

from __future__ import annotations

from regard.spec.attention import *
from regard.spec.baselines import *
from regard.spec.decoder import *
from regard.spec.encoder import *
from regard.spec.feedforward import *
from regard.spec.frontend import *
from regard.spec.head import *
from regard.spec.mask import *
from regard.spec.model import *
from regard.spec.model_spec import *
from regard.spec.position import *
from regard.spec.residual import *
from regard.spec.serialization import from_dict, own_kinds, register, to_dict
from regard.spec.speech import *
from regard.spec.stack import *


def __dir__() -> list[str]:
    """What is defined in these files, without what they import."""
    owners = {name: getattr(value, "__module__", "") for name, value in globals().items()}
    return sorted(name for name, owner in owners.items() if owner.startswith(f"{__name__}."))
