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

    title: str
    class_path: str  # below regard.study

    @property
    def topic(self) -> str:
        """A key of TOPICS: the folder."""
        return self.class_path.partition(".")[0]


STUDIES: dict[str, Listing] = {
    # attention
    "scaling": Listing("Scaling scores by 1/√d_k", "attention.scores.ScoreScaling"),
    "permutation": Listing(
        "Permutation equivariance and positions", "attention.permutation.Permutation"
    ),
    "lookup": Listing("Soft look-up and its hard limit", "attention.soft_lookup.SoftLookup"),
    "tied_projections": Listing(
        "One, two or three matrices for Q, K and V", "attention.heads.TiedProjections"
    ),
    "heads": Listing("One head or many; pruning them", "attention.heads.Heads"),
    "score_function": Listing("Additive and dot-product scores", "attention.scores.ScoreFunction"),
    "explanation": Listing("Attention is not explanation", "attention.explanation.Explanation"),
    # positions
    "sinusoids": Listing(
        "Sinusoids: unique, bounded, shifts linear", "positions.sinusoids.Sinusoids"
    ),
    "wavelengths": Listing(
        "Sinusoids: slow dimensions, distance", "positions.sinusoids.Wavelengths"
    ),
    "learned_positions": Listing(
        "Learned and sinusoidal positions",
        "positions.comparison.LearnedPositions",
    ),
    "extrapolation": Listing("Beyond the training length", "positions.comparison.Extrapolation"),
    # block
    "pointwise": Listing("Feed-forward as 1×1 convolutions", "block.convolutions.Pointwise"),
    "receptive_field": Listing("Receptive fields of layers", "block.convolutions.ReceptiveField"),
    "residuals": Listing("Residual connections over depth", "block.residuals.Residuals"),
    "norms": Listing("LayerNorm, RMSNorm, BatchNorm", "block.norms.Norms"),
    "norm_placement": Listing("Post-norm, pre-norm and warm-up", "block.norms.NormPlacement"),
    # training
    "warmup": Listing("Warm-up on and off", "training.language_models.Warmup"),
    "label_smoothing": Listing(
        "Label smoothing: perplexity, BLEU, calibration",
        "training.translators.LabelSmoothing",
    ),
    "teacher_forcing": Listing(
        "Teacher forcing and exposure", "training.translators.TeacherForcing"
    ),
    "training_memory": Listing(
        "Mixed precision, accumulation, checkpointing",
        "training.training_memory.TrainingMemory",
    ),
    "depth": Listing("Depth before width", "training.language_models.Depth"),
    # baselines
    "gradient_distance": Listing(
        "Gradients over distance", "baselines.gradient_distance.GradientDistance"
    ),
    "fixed_context": Listing(
        "The fixed context as a bottleneck", "baselines.fixed_context.FixedContext"
    ),
    "path_length": Listing(
        "Path lengths, sequential operations", "baselines.layer_costs.PathLength"
    ),
    "complexity": Listing("Complexity over n and d", "baselines.layer_costs.Complexity"),
    "algorithms": Listing(
        "Copying and parity, longer than seen", "baselines.algorithms.Algorithms"
    ),
    "universal": Listing(
        "Universal Transformers: parity, brackets",
        "baselines.algorithms.UniversalDepth",
    ),
    # cost
    "attention_memory": Listing("Memory of attention, fused or not", "cost.memory.AttentionMemory"),
    "kv_cache": Listing("The KV cache: cost of a token", "cost.memory.KVCache"),
    "efficient_attention": Listing(
        "Efficient attention: quality and cost",
        "cost.modifications.EfficientAttention",
    ),
    "scaling_law": Listing("A scaling law and its prediction", "cost.scaling_law.ScalingLaw"),
    "data_hunger": Listing("Data hunger and saturation", "cost.data_hunger.DataHunger"),
    "transfer": Listing("Do modifications transfer?", "cost.modifications.Transfer"),
    "decoder_only": Listing("Decoder-only or encoder–decoder", "cost.decoder_only.DecoderOnly"),
    # inside
    "induction": Listing("Circuits: induction heads, composition", "inside.induction.Induction"),
    "feedforward_units": Listing(
        "Feed-forward units as keys and values",
        "inside.feedforward_units.FeedForwardUnits",
    ),
    "head_roles": Listing("Head roles on parsed text", "inside.head_roles.HeadRoles"),
    "ambiguity": Listing("Ambiguity: bank, with the telescope", "inside.ambiguity.Ambiguity"),
    # tables
    "layer_types": Listing("Table 1: layer types", "tables.layer_types.LayerTypes"),
    "ablation": Listing("Table 3: variations of the model", "tables.ablation.Ablation"),
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
