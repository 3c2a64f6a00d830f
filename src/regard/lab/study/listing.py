"""The list of all studies, by topic; reading it imports no study, and no torch."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from regard.lab.study.study import Study
from regard.system.errors import SettingError, did_you_mean

# In the order of a report; a folder of `regard.study` each.
TOPICS = {
    "attention": "Attention",
    "positions": "Positions",
    "block": "The block",
    "training": "Training",
    "baselines": "Against what came before",
    "cost": "Cost and scale",
    "inside": "Inside",
    "tables": "The paper's tables",
}


class Listing(NamedTuple):
    """A line of the list: where the study stands, and its title."""

    topic: str  # a key of TOPICS
    title: str
    class_path: str  # below regard.study


STUDIES: dict[str, Listing] = {
    # attention
    "scaling": Listing(
        "attention", "Scaling scores by 1/√d_k", "attention.score_scaling.ScoreScaling"
    ),
    "permutation": Listing(
        "attention", "Permutation equivariance and positions", "attention.permutation.Permutation"
    ),
    "lookup": Listing(
        "attention", "Soft look-up and its hard limit", "attention.soft_lookup.SoftLookup"
    ),
    "tied_projections": Listing(
        "attention",
        "One, two or three matrices for Q, K and V",
        "attention.tied_projections.TiedProjections",
    ),
    "heads": Listing("attention", "One head or many; pruning them", "attention.heads.Heads"),
    "score_function": Listing(
        "attention", "Additive and dot-product scores", "attention.score_function.ScoreFunction"
    ),
    "explanation": Listing(
        "attention", "Attention is not explanation", "attention.explanation.Explanation"
    ),
    # positions
    "sinusoids": Listing(
        "positions", "Sinusoids: unique, bounded, shifts linear", "positions.sinusoids.Sinusoids"
    ),
    "wavelengths": Listing(
        "positions", "Sinusoids: slow dimensions, distance", "positions.wavelengths.Wavelengths"
    ),
    "learned_positions": Listing(
        "positions",
        "Learned and sinusoidal positions",
        "positions.learned_positions.LearnedPositions",
    ),
    "extrapolation": Listing(
        "positions", "Beyond the training length", "positions.extrapolation.Extrapolation"
    ),
    # block
    "pointwise": Listing("block", "Feed-forward as 1×1 convolutions", "block.pointwise.Pointwise"),
    "receptive_field": Listing(
        "block", "Receptive fields of layers", "block.receptive_field.ReceptiveField"
    ),
    "residuals": Listing("block", "Residual connections over depth", "block.residuals.Residuals"),
    "norms": Listing("block", "LayerNorm, RMSNorm, BatchNorm", "block.norms.Norms"),
    "norm_placement": Listing(
        "block", "Post-norm, pre-norm and warm-up", "block.norm_placement.NormPlacement"
    ),
    # training
    "warmup": Listing("training", "Warm-up on and off", "training.warmup.Warmup"),
    "label_smoothing": Listing(
        "training",
        "Label smoothing: perplexity, BLEU, calibration",
        "training.label_smoothing.LabelSmoothing",
    ),
    "teacher_forcing": Listing(
        "training", "Teacher forcing and exposure", "training.teacher_forcing.TeacherForcing"
    ),
    "training_memory": Listing(
        "training",
        "Mixed precision, accumulation, checkpointing",
        "training.training_memory.TrainingMemory",
    ),
    "depth": Listing("training", "Depth before width", "training.depth.Depth"),
    # baselines
    "gradient_distance": Listing(
        "baselines", "Gradients over distance", "baselines.gradient_distance.GradientDistance"
    ),
    "fixed_context": Listing(
        "baselines", "The fixed context as a bottleneck", "baselines.fixed_context.FixedContext"
    ),
    "path_length": Listing(
        "baselines", "Path lengths, sequential operations", "baselines.path_length.PathLength"
    ),
    "complexity": Listing(
        "baselines", "Complexity over n and d", "baselines.complexity.Complexity"
    ),
    "algorithms": Listing(
        "baselines", "Copying and parity, longer than seen", "baselines.algorithms.Algorithms"
    ),
    "universal": Listing(
        "baselines",
        "Universal Transformers: parity, brackets",
        "baselines.universal.UniversalDepth",
    ),
    # cost
    "attention_memory": Listing(
        "cost", "Memory of attention, fused or not", "cost.attention_memory.AttentionMemory"
    ),
    "kv_cache": Listing("cost", "The KV cache: cost of a token", "cost.kv_cache.KVCache"),
    "efficient_attention": Listing(
        "cost",
        "Efficient attention: quality and cost",
        "cost.efficient_attention.EfficientAttention",
    ),
    "scaling_law": Listing(
        "cost", "A scaling law and its prediction", "cost.scaling_law.ScalingLaw"
    ),
    "data_hunger": Listing("cost", "Data hunger and saturation", "cost.data_hunger.DataHunger"),
    "transfer": Listing("cost", "Do modifications transfer?", "cost.transfer.Transfer"),
    "decoder_only": Listing(
        "cost", "Decoder-only or encoder–decoder", "cost.decoder_only.DecoderOnly"
    ),
    # inside
    "induction": Listing(
        "inside", "Circuits: induction heads, composition", "inside.induction.Induction"
    ),
    "feedforward_units": Listing(
        "inside",
        "Feed-forward units as keys and values",
        "inside.feedforward_units.FeedForwardUnits",
    ),
    "head_roles": Listing("inside", "Head roles on parsed text", "inside.head_roles.HeadRoles"),
    "ambiguity": Listing(
        "inside", "Ambiguity: bank, with the telescope", "inside.ambiguity.Ambiguity"
    ),
    # tables
    "layer_types": Listing("tables", "Table 1: layer types", "tables.layer_types.LayerTypes"),
    "ablation": Listing("tables", "Table 3: variations of the model", "tables.ablation.Ablation"),
}


def by_topic() -> dict[str, list[str]]:
    """The names of the studies under each topic that has some, in the order of a report."""
    names = {topic: [n for n, line in STUDIES.items() if line.topic == topic] for topic in TOPICS}
    return {topic: studies for topic, studies in names.items() if studies}


def check(name: str) -> None:
    """Refuses a name that is no study."""
    if name not in STUDIES:
        raise SettingError(f"there is no study {name!r}", did_you_mean(name, STUDIES))


def load(name: str) -> Study:
    """The study of this name."""
    check(name)
    # Imported here, so that reading the list imports no study.
    module, _, class_name = STUDIES[name].class_path.rpartition(".")
    study: Study = getattr(importlib.import_module(f"regard.lab.study.{module}"), class_name)()
    assert study.name == name, f"{class_name} is listed as {name!r}"
    return study


def in_order() -> list[str]:
    """All names, in the order of a report."""
    return [name for names in by_topic().values() for name in names]
