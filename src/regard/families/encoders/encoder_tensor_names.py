"""The tensor names of an encoder's layer: BERT's, and where a family departs from them."""

from __future__ import annotations

from dataclasses import dataclass

from regard import spec
from regard.families.tensor_table import (
    ParameterRule,
    Rename,
    fused_module_rules,
    module_rules,
)


@dataclass(frozen=True)
class LayerNames:
    """Hugging Face's names for the modules of a layer; the defaults are BERT's.

    Where queries and keys share one projection (Reformer's LSH layers), `qkv` has two names.
    """

    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    feedforward_inner: str = "intermediate.dense"
    feedforward_outer: str = "output.dense"
    feedforward_norm: str = "output.LayerNorm"
    layer: str = "encoder.layer.{i}"

    def layer_template(
        self, model: spec.Encoder, hf_prefix: str, prefix: str = ""
    ) -> list[ParameterRule]:
        """The rules of a layer with `{i}` for its index, to be repeated by `per_layer`."""
        name = f"{prefix}stack.blocks.{{i}}"
        return self.block_rules(model.stack.block, name, hf_prefix + self.layer)

    def block_rules(self, block: spec.Block, name: str, hf: str) -> list[ParameterRule]:
        """The rules of one layer: our block `name`, their layer `hf`."""
        attention = block.attention
        norms = [f"{name}.residual.each.{i}.norm" for i in (0, 1)]
        # Reformer's LSH attention projects queries and keys by one matrix.
        projection = "qkv" if len(self.qkv) == 3 else "qv"
        rows = [attention.heads * attention.d_k] * len(self.qkv)
        hf_projections = [f"{hf}.{module}" for module in self.qkv]
        return [
            *fused_module_rules(
                f"{name}.attention.project.{projection}",
                hf_projections,
                rows,
                "q" in attention.bias,
            ),
            *module_rules(
                f"{name}.attention.output", f"{hf}.{self.attention_output}", "o" in attention.bias
            ),
            *norm_rules(norms[0], f"{hf}.{self.attention_norm}"),
            *module_rules(f"{name}.feedforward.inner", f"{hf}.{self.feedforward_inner}"),
            *module_rules(f"{name}.feedforward.outer", f"{hf}.{self.feedforward_outer}"),
            *norm_rules(norms[1], f"{hf}.{self.feedforward_norm}"),
        ]


def norm_rules(parameter: str, hf: str) -> list[ParameterRule]:
    """A layer norm, whose weight and bias the first files call gamma and beta."""
    return [
        Rename(f"{parameter}.weight", f"{hf}.weight", (f"{hf}.gamma",)),
        Rename(f"{parameter}.bias", f"{hf}.bias", (f"{hf}.beta",)),
    ]
