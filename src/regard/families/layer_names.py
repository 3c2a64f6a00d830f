"""The names of a Transformer layer's modules in Hugging Face's files, and the rules of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from regard import spec
from regard.families.tensor_table import (
    Count,
    Rename,
    Rule,
    Rules,
    fused_module_rules,
    module_rules,
    per_layer,
)


@dataclass(frozen=True)
class LayerNames:
    """Hugging Face's names for the modules of a layer; the defaults are BERT's.

    Which of them there are, and which have a bias, follows from the block.
    """

    # Three modules, or a fused one; two where queries and keys share one (Reformer's LSH layers);
    # none where the family stores them in another way.
    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    attention_output: str = "attention.output.dense"
    cross: tuple[str, ...] = ()  # queries, keys, values and output of the cross-attention
    feedforward_inner: tuple[str, ...] = ("intermediate.dense",)  # or the gate and the value
    feedforward_outer: str = "output.dense"
    # The norms of the sublayers, and those after them where they stand on both sides.
    attention_norm: str = "attention.output.LayerNorm"
    cross_norm: str = ""
    feedforward_norm: str = "output.LayerNorm"
    after: tuple[str, ...] = ()
    qk_norms: tuple[str, ...] = ()  # of the queries and keys of each head
    layer: str = "encoder.layer.{i}"
    final: str = ""  # the norm after all layers
    transposed: bool = False  # matrices are inputs × outputs

    def stack_rules(
        self, stack: spec.Stack, name: str = "stack", hf: str = "", more: Iterable[Rule] = ()
    ) -> Rules:
        """The rules of a stack, which our and their prefix come before; `more` are of each layer.

        In all of them `{i}` is the number of the layer.
        """
        layer = self.block_rules(stack.block, f"{name}.blocks.{{i}}", f"{hf}{self.layer}")
        rules = per_layer(len(stack.unique_layers), [*layer, *more])
        if stack.final is not None:
            rules += norm_rules(f"{name}.final_norm", f"{hf}{self.final}", stack.final)
        return rules

    def block_rules(self, block: spec.Block, name: str, hf: str) -> Rules:
        """The rules of one layer without its experts: our block `name`, their layer `hf`."""
        part = block.attention
        ours = f"{name}.attention"
        letters = "qv" if len(self.qkv) == 2 else "qkv"
        rules = self._projection(f"{ours}.project.{letters}", part, letters, hf, self.qkv)
        rules += self._projection(f"{ours}.output", part, "o", hf, [self.attention_output])
        if part.qk_norm is not None:
            for norm, theirs in zip(("q_norm", "k_norm"), self.qk_norms, strict=True):
                rules += norm_rules(f"{ours}.project.{norm}", f"{hf}.{theirs}", part.qk_norm)
        norms = [self.attention_norm, self.feedforward_norm]
        if block.cross is not None:
            norms.insert(1, self.cross_norm)
            rules += self.cross_rules(block.cross, f"{name}.cross", hf)
        place = "norms.{}" if isinstance(block.residual, spec.Parallel) else "each.{}.norm"
        places = [place.format(i) for i in range(len(norms))]
        places += [f"each.{i}.after" for i in range(len(self.after))]
        for place, theirs in zip(places, [*norms, *self.after], strict=True):
            rules += norm_rules(f"{name}.residual.{place}", f"{hf}.{theirs}", block.norm)
        if not isinstance(block.feedforward, spec.MixtureOfExperts):
            rules += self.feedforward_rules(block.feedforward, f"{name}.feedforward", hf)
        return rules

    def cross_rules(self, part: spec.Attention, name: str, hf: str) -> Rules:
        """The rules of cross-attention, our `name`, in their layer `hf`."""
        query, *keys_values, output = self.cross
        return [
            *self._projection(f"{name}.project.q", part, "q", hf, [query]),
            *self._projection(f"{name}.project.kv", part, "kv", hf, keys_values),
            *self._projection(f"{name}.output", part, "o", hf, [output]),
        ]

    def feedforward_rules(self, part: spec.PositionWise, name: str, hf: str) -> Rules:
        """The rules of a feed-forward network: our `name`, in their layer or expert `hf`."""
        inner = [f"{hf}.{module}" for module in self.feedforward_inner]
        outer = f"{hf}.{self.feedforward_outer}"
        rows = [part.d_ff] * len(inner)
        transposed = self.transposed
        return [
            *fused_module_rules(f"{name}.inner", inner, rows, part.bias, transposed=transposed),
            *module_rules(f"{name}.outer", outer, part.bias, transposed=transposed),
        ]

    def _projection(
        self, name: str, part: spec.Attention, letters: str, hf: str, modules: Sequence[str]
    ) -> Rules:
        """The rules of a projection, by the letters of what it makes: one module or several."""
        if not modules:
            return []
        rows = {
            "q": part.heads * part.d_k,
            "k": part.key_heads * part.d_k,
            "v": part.key_heads * part.d_v,
            "o": 0,  # alone
        }
        return fused_module_rules(
            name,
            [f"{hf}.{module}" for module in modules],
            [rows[letter] for letter in letters],
            [letter in part.bias for letter in letters],
            transposed=self.transposed,
        )


def norm_rules(parameter: str, hf: str, norm: spec.Norm | None = None) -> Rules:
    """A norm; the first files call weight and bias of a layer norm gamma and beta."""
    match norm:
        case spec.RMSNorm():
            return module_rules(parameter, hf, bias=False)
        case spec.BatchNorm(counts=counts):
            batches = Count(f"{parameter}.batches", f"{hf}.num_batches_tracked")
            return [
                *module_rules(parameter, hf),
                Rename(f"{parameter}.running_mean", f"{hf}.running_mean"),
                Rename(f"{parameter}.running_variance", f"{hf}.running_var"),
                *([batches] if counts else []),
            ]
    return [
        Rename(f"{parameter}.weight", f"{hf}.weight", (f"{hf}.gamma",)),
        Rename(f"{parameter}.bias", f"{hf}.bias", (f"{hf}.beta",)),
    ]
