"""Position-wise feed-forward networks: dense, gated, and mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.spec.validation import Experts, NonNegative, Part, Positive, Rate, Size
from regard.system.errors import ModelError

# `gelu` is exact (erf), `gelu_tanh` is GPT-2's approximation, `quick_gelu` is CLIP's, by
# x · sigmoid(1.702 x).
Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]


@dataclass(frozen=True)
class FeedForward(Part):
    """Position-wise feed-forward network (Section 3.3): two linear maps, an activation between."""

    d_ff: Size  # width of the inner layer
    activation: Activation = "relu"
    dropout: Rate = 0.0  # on the inner activations; that on the output is the block's
    bias: bool = True


@dataclass(frozen=True)
class GatedFeedForward(Part):
    """Gated feed-forward network (Shazeer 2020): activation(x W) ⊙ (x V), then a linear map.

    With `silu` this is SwiGLU, with `gelu` GeGLU.
    """

    d_ff: Size  # width of the inner layer: W and V are [d_model, d_ff] each
    activation: Activation = "silu"
    dropout: Rate = 0.0
    bias: bool = False
    # Clamped gate (gpt-oss): activation(min(x W, limit)) ⊙ (x V within ±limit, plus 1).
    limit: Positive | None = None


@dataclass(frozen=True)
class ConvFeedForward(Part):
    """Convolutional feed-forward network: two convolutions over positions, an activation between.

    With kernels of 1 it is the position-wise network (Section 3.3, last paragraph); FastSpeech
    (Ren et al. 2019) has (9, 1). Centred in encoders, causal in decoders.
    """

    d_ff: Size  # channels of the inner layer
    # Widths in positions of the inner and the outer convolution.
    kernels: tuple[Size, Size] = (1, 1)
    activation: Activation = "relu"
    dropout: Rate = 0.0  # on the inner activations
    bias: bool = True

    def validate(self) -> None:
        if any(width % 2 == 0 for width in self.kernels):
            raise ModelError(
                f"kernel sizes must be odd, not {self.kernels}", "set odd kernel sizes"
            )

    @property
    def mixes_positions(self) -> bool:
        """Whether a position reads its neighbours: kernels wider than 1."""
        return max(self.kernels) > 1


@dataclass(frozen=True)
class MixFeedForward(Part):
    """Mix-FFN (Xie et al. 2021, SegFormer): between the linear maps, each channel is convolved with
    its 3 × 3 neighbours on the image, which says where a position is."""

    d_ff: Size  # width of the inner layer
    activation: Activation = "gelu"
    dropout: Rate = 0.0  # on the inner activations
    bias = True


@dataclass(frozen=True)
class MixtureOfExperts(Part):
    """Mixture of experts (Shazeer et al. 2017, Fedus et al. 2022): experts by token.

    A router chooses the experts of each token. In training, tokens beyond an expert's capacity are
    dropped: only the residual connection passes them on.
    """

    count: Experts  # number of experts
    inner: FeedForward | GatedFeedForward  # the network of one expert
    top: Size = 2  # k of top-k routing: experts per token
    capacity: Positive = 1.25  # capacity factor: multiple of an even share of the batch's tokens
    balance: NonNegative = 0.01  # weight of the load-balancing loss
    router_bias: bool = False

    def validate(self) -> None:
        if self.top > self.count:
            raise ModelError(
                f"top={self.top} is more than count={self.count}, the number of experts",
                "lower `top`, or raise `count`",
            )

    # The options of one expert, so that callers need not tell the three kinds apart.

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


PositionWise = FeedForward | GatedFeedForward | ConvFeedForward | MixFeedForward | MixtureOfExperts
