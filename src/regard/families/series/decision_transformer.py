"""Decision Transformer in transformers (Chen et al. 2021): GPT-2's stack over trajectories.

What stands in front of the stack and its three heads are in one class. GPT-2's table of words is
stored as well, which nothing reads, and of its positions all tokens have the first.
"""

from __future__ import annotations

from collections.abc import Collection

from regard import spec
from regard.families.block_config import block_from_config, stack_config
from regard.families.config_schema import Config, ConfigSchema, part_config, part_fields
from regard.families.decoders import gpt2
from regard.families.heads import architecture
from regard.families.layer_names import norm_rules
from regard.families.preset_settings import FromConfig, PresetFamily, Settings, size
from regard.families.tensor_table import Rename, Rules, mask_rules, module_rules

PREFIX = ""
SPEC_TYPES = (spec.Encoder, spec.Trajectories)
_SCHEMA = ConfigSchema(
    {
        **{key: value for key, value in gpt2.GPT2.schema.defaults.items() if key != "n_embd"},
        "vocab_size": 1,
        "hidden_size": 128,
        "n_layer": 3,
        "n_head": 1,
        "activation_function": "relu",
        "state_dim": 17,
        "act_dim": 4,
        "max_ep_len": 4096,  # steps of an episode
        "action_tanh": True,
    },
    gpt2.GPT2.schema.fixed,
    gpt2.GPT2.schema.ignored | {"tie_word_embeddings"},
    {name: key for name, key in gpt2.GPT2.schema.synonyms.items() if key != "n_embd"},
)
_KEYS = {"hidden_size": "d_model"} | {
    key: name for key, name in gpt2.GPT2.keys.items() if key != "n_embd"
}
_INPUT_KEYS = {
    "state_dim": "states",
    "act_dim": "actions",
    "max_ep_len": "steps",
    "embd_pdrop": "dropout",
    "n_positions": "positions",
    "vocab_size": "vocabulary",
}
# Our modules, and theirs.
_MODULES = {
    "input.embed_return": "embed_return",
    "input.embed_state": "embed_state",
    "input.embed_action": "embed_action",
    "steps.state": "predict_state",
    "steps.action": "predict_action.0",
    "steps.next_return": "predict_return",
}

# ------------------------------------------------------------------ config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    return {
        "model_type": "decision_transformer",
        "architectures": ["DecisionTransformerModel"],
        **part_config(model.trajectories, _INPUT_KEYS),
        **stack_config(model.d_model, model.stack, _KEYS),
        "action_tanh": model.part(spec.TrajectoryHead).bounded,
    }


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    values = _SCHEMA.parse(config)
    architecture(config, "DecisionTransformer", ("Model",))
    block = block_from_config(values, spec.PreNorm(), _KEYS)
    # The norm of the embeddings has torch's epsilon, whatever that of the stack is.
    front = spec.Trajectories(**part_fields(values, _INPUT_KEYS), norm=spec.LayerNorm(1e-5))
    stack = spec.Stack.of(values["n_layer"], block, spec.CausalMask(), final=block.norm)
    head = spec.TrajectoryHead(values["action_tanh"])
    return spec.Encoder(values["hidden_size"], front, stack, (head,))


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    rules: Rules = [
        Rename("input.embed_step.weight", "embed_timestep.weight"),
        Rename("input.position.table", "encoder.wpe.weight"),
        Rename("input.kept", "encoder.wte.weight"),
        *norm_rules("input.norm", "embed_ln"),
    ]
    for ours, theirs in _MODULES.items():
        rules += module_rules(ours, theirs)
    masks = mask_rules("encoder.h.{i}.attn", model.trajectories.positions)
    return [*rules, *gpt2.LAYER.stack_rules(model.stack, hf="encoder.", more=masks)]


# ------------------------------------------------------------------ presets

# Chen et al. 2021, Table 9 (Gym); the smaller one is for CartPole and Pendulum.
SIZES = {"tiny": size(2, 64, 2), "base": size(3, 128, 1)}
_DEFAULTS: Settings = {
    "dropout": 0.1,
    "attention_dropout": None,  # as `dropout`
    "activation": "relu",
    "states": 17,  # of the Hopper's and its like
    "bounded": True,
}
_make = FromConfig(
    to_spec,
    {
        **_KEYS,
        "state_dim": "states",
        "act_dim": "vocabulary",
        "max_ep_len": "context",
        "embd_pdrop": "dropout",
        "action_tanh": "bounded",
    },
)
PRESETS = {"decision-transformer": PresetFamily("policy", _make, SIZES, _DEFAULTS, 6, 1000, "base")}
