"""What each place goes through by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.errors import ModelError
from regard.spec.validation import sizes

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]


@dataclass(frozen=True)
class FeedForward:
    """Section 3.3: two linear maps with an activation between; `dropout` acts on the inner
    activations."""

    d_ff: int
    activation: Activation = "relu"
    dropout: float = 0.0
    bias: bool = True


@dataclass(frozen=True)
class GatedFeedForward:
    """activation(x W) ⊙ (x V), mapped back (Shazeer 2020): SwiGLU, GeGLU."""

    d_ff: int
    activation: Activation = "silu"
    dropout: float = 0.0
    bias: bool = False


@dataclass(frozen=True)
class MixtureOfExperts:
    """`count` networks like `inner`, of which a router asks `top` for each place (Shazeer et al.
    2017, Fedus et al. 2022).

    In training each takes up to `capacity` times its even share of a batch, and the rest is
    dropped; `balance` is the weight of the loss that keeps shares even.
    """

    count: int
    inner: FeedForward | GatedFeedForward
    top: int = 2
    capacity: float = 1.25
    balance: float = 0.01

    def __post_init__(self) -> None:
        sizes(self, "count", "top")
        if self.top > self.count:
            raise ModelError(
                f"{self.top} of {self.count} experts cannot be asked",
                "lower `top`, or raise `count`",
            )
        if self.capacity <= 0:
            raise ModelError(
                "experts without capacity answer nothing", "give a `capacity` of about 1.25"
            )

    @property
    def d_ff(self) -> int:
        return self.inner.d_ff

    @property
    def activation(self) -> Activation:
        return self.inner.activation

    @property
    def dropout(self) -> float:
        return self.inner.dropout

    @property
    def bias(self) -> bool:
        return self.inner.bias


PositionWise = FeedForward | GatedFeedForward | MixtureOfExperts
