"""The list of all studies, by topic; reading it imports no study, and no torch."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from regard.lab.study.study import Study
from regard.system.errors import SettingError, did_you_mean


class Listing(NamedTuple):
    """A line of the list: the title of a study, and where its class stands."""

    title: str
    class_path: str  # below regard.lab.study


# The studies under each topic, in the order of a report.
TOPICS: dict[str, dict[str, Listing]] = {
    "Attention": {
        "scaling": Listing("Scaling scores by 1/√d_k", "scores.ScoreScaling"),
        "permutation": Listing(
            "Permutation equivariance and positions", "positional_encodings.Permutation"
        ),
        "lookup": Listing("Soft look-up and its hard limit", "scores.SoftLookup"),
        "tied_projections": Listing(
            "One, two or three matrices for Q, K and V", "heads.TiedProjections"
        ),
        "heads": Listing("One head or many; pruning them", "heads.Heads"),
        "score_function": Listing("Additive and dot-product scores", "scores.ScoreFunction"),
        "explanation": Listing("Attention is not explanation", "explanation.Explanation"),
        "beyond_weights": Listing(
            "What attention weights do not tell", "explanation.BeyondWeights"
        ),
    },
    "Positions": {
        "sinusoids": Listing(
            "Sinusoids: unique, bounded, shifts linear", "positional_encodings.Sinusoids"
        ),
        "wavelengths": Listing(
            "Sinusoids: slow dimensions, distance", "positional_encodings.Wavelengths"
        ),
        "learned_positions": Listing(
            "Learned and sinusoidal positions", "positions.LearnedPositions"
        ),
        "extrapolation": Listing("Beyond the training length", "positions.Extrapolation"),
        "read_positions": Listing(
            "Concatenated or added: which can be read back", "positions.ReadPositions"
        ),
        "relative_positions": Listing(
            "Relative positions in translation", "positions.RelativePositions"
        ),
    },
    "The block": {
        "pointwise": Listing("Feed-forward as 1×1 convolutions", "convolutions.Pointwise"),
        "hierarchical": Listing(
            "Attention within sentences, then between them", "sentences.HierarchicalAttention"
        ),
        "receptive_field": Listing("Receptive fields of layers", "convolutions.ReceptiveField"),
        "residuals": Listing("Residual connections over depth", "norms.Residuals"),
        "norms": Listing("LayerNorm, RMSNorm, BatchNorm", "norms.Norms"),
        "norm_placement": Listing("Post-norm, pre-norm and warm-up", "norms.NormPlacement"),
    },
    "Training": {
        "warmup": Listing("Warm-up on and off", "language_models.Warmup"),
        "label_smoothing": Listing(
            "Label smoothing: perplexity, BLEU, calibration", "translators.LabelSmoothing"
        ),
        "teacher_forcing": Listing("Teacher forcing and exposure", "translators.TeacherForcing"),
        "training_memory": Listing(
            "Mixed precision, accumulation, checkpointing", "memory.TrainingMemory"
        ),
        "batch_size": Listing("Larger batches", "language_models.BatchSize"),
        "depth": Listing("Depth before width", "language_models.Depth"),
    },
    "Against what came before": {
        "gradient_distance": Listing("Gradients over distance", "baselines.GradientDistance"),
        "fixed_context": Listing("The fixed context as a bottleneck", "baselines.FixedContext"),
        "path_length": Listing("Path lengths, sequential operations", "layer_types.PathLength"),
        "complexity": Listing("Complexity over n and d", "layer_types.Complexity"),
        "algorithms": Listing("Copying and parity, longer than seen", "baselines.Algorithms"),
        "universal": Listing(
            "Universal Transformers: parity, brackets", "baselines.UniversalDepth"
        ),
    },
    "Cost and scale": {
        "attention_memory": Listing("Memory of attention, fused or not", "memory.AttentionMemory"),
        "kv_cache": Listing("The KV cache: cost of a token", "memory.KVCache"),
        "efficient_attention": Listing(
            "Efficient attention: quality and cost", "modifications.EfficientAttention"
        ),
        "scaling_law": Listing("A scaling law and its prediction", "scaling_law.ScalingLaw"),
        "data_hunger": Listing("Data hunger and saturation", "language_models.DataHunger"),
        "vit_and_cnn": Listing(
            "ViT against a CNN over data", "convolutions_and_patches.PatchesAndConvolutions"
        ),
        "pretraining": Listing("Pre-training pays", "pretraining.PreTraining"),
        "transfer": Listing("Do modifications transfer?", "modifications.Transfer"),
        "decoder_only": Listing("Decoder-only or encoder–decoder", "translators.DecoderOnly"),
    },
    "Inside": {
        "induction": Listing("Circuits: induction heads, composition", "heads.Induction"),
        "feedforward_units": Listing(
            "Feed-forward units as keys and values", "inside.FeedForwardUnits"
        ),
        "head_roles": Listing("Head roles on parsed text", "heads.HeadRoles"),
        "ambiguity": Listing("Ambiguity: bank, with the telescope", "inside.Ambiguity"),
    },
    "The paper's tables": {
        "layer_types": Listing("Table 1: layer types", "layer_types.LayerTypes"),
        "ablation": Listing("Table 3: variations of the model", "translators.Ablation"),
    },
}
STUDIES = {name: line for lines in TOPICS.values() for name, line in lines.items()}


def check(name: str) -> None:
    """Refuses a name that is no study."""
    if name not in STUDIES:
        raise SettingError(f"there is no study {name!r}", did_you_mean(name, STUDIES))


def load(name: str) -> Study:
    """The study of this name."""
    check(name)
    # Imported here, so that reading the list imports no study.
    module, _, class_name = STUDIES[name].class_path.partition(".")
    study: Study = getattr(importlib.import_module(f"regard.lab.study.{module}"), class_name)(name)
    return study
