"""Who may look at whom. True means "may look", everywhere.

A pattern is a predicate on (batch row, head, query position, key position), made of tensors that broadcast against each
other; patterns combine with & | ~. A `Sight` is a pattern laid over the actual positions of one call: it is made once per
batch, outside the layers, and every layer of a stack shares it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.core.position import Relative


class Pattern:
    """Abstract. `allows` gets index tensors shaped to broadcast to [B, H, T, S] and returns booleans that do."""

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError

    def __and__(self, other: Pattern) -> Pattern:
        if isinstance(self, Everything):
            return other
        return self if isinstance(other, Everything) else Both(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return Either(self, other)

    def __invert__(self) -> Pattern:
        return Opposite(self)


@dataclass(frozen=True)
class Everything(Pattern):
    """No restriction."""

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(query == key)


@dataclass(frozen=True)
class Causal(Pattern):
    """A query sees keys at its own position and before; with a `window`, only the last that many."""

    window: int | None = None

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        before = key <= query
        return before if self.window is None else before & (key > query - self.window)


@dataclass(frozen=True, eq=False)
class Padding(Pattern):
    """Only real tokens are seen: `real[b, s]` is True where row b holds a token at position s."""

    real: Tensor  # [B, S] bool

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.real[batch, key]


@dataclass(frozen=True)
class Both(Pattern):
    first: Pattern
    second: Pattern

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.first.allows(batch, head, query, key) & self.second.allows(batch, head, query, key)


@dataclass(frozen=True)
class Either(Pattern):
    first: Pattern
    second: Pattern

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.first.allows(batch, head, query, key) | self.second.allows(batch, head, query, key)


@dataclass(frozen=True)
class Opposite(Pattern):
    inner: Pattern

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ~self.inner.allows(batch, head, query, key)


class Sight:
    """A pattern over `queries` and `keys`, the place of each row and column of the score matrix.

    With it goes what the stack's positions say of these places, computed once for all layers: `bias` is added to the
    scores, `angles` turn q and k, `relative` gives each layer a bias of its own.
    """

    def __init__(
        self,
        pattern: Pattern,
        queries: Tensor,
        keys: Tensor,
        batch: int = 1,
        bias: Tensor | None = None,
        angles: tuple[Tensor, Tensor] | None = None,
        relative: Relative | None = None,
    ) -> None:
        self.pattern = pattern
        self.queries, self.keys = queries, keys  # [T], [S]
        self.batch = batch
        self.bias = bias  # [B or 1, H, T, S]
        self.angles = angles
        self.relative = relative

    @property
    def all(self) -> bool:
        """Nothing is hidden and nothing is added: no mask is needed."""
        return isinstance(self.pattern, Everything) and self.bias is None

    @property
    def causal(self) -> bool:
        """Exactly the triangle that kernels know by name: only when queries and keys are the same places."""
        return self.pattern == Causal() and self.bias is None and self.queries is self.keys

    @cached_property
    def additive(self) -> Tensor:
        """What kernels take as a mask: booleans, or the bias with −∞ where nothing may be seen."""
        return self.mask if self.bias is None else self.bias.masked_fill(~self.mask, float("-inf"))

    @cached_property
    def mask(self) -> Tensor:
        """[B or 1, H or 1, T or 1, S], True = may look; dimensions on which the pattern does not depend stay 1."""
        return self.rows(self.queries)

    @cached_property
    def blind(self) -> Tensor:
        """[B or 1, H or 1, T or 1, 1], True for queries that may look at nothing."""
        return ~self.mask.any(dim=-1, keepdim=True)

    def biased(self, bias: Tensor) -> Sight:
        """The same sight, with what one layer adds to its scores."""
        return Sight(self.pattern, self.queries, self.keys, self.batch, bias)

    def rows(self, queries: Tensor) -> Tensor:
        """The mask of some query positions only."""
        device = self.keys.device
        mask = self.pattern.allows(
            torch.arange(self.batch, device=device)[:, None, None, None],
            torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device),
            queries[None, None, :, None],
            self.keys[None, None, None, :],
        )
        return mask.expand(*mask.shape[:3], self.keys.shape[0])
