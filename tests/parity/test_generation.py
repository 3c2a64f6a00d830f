"""Greedy and beam search give the tokens of transformers' `generate`: padded batches, every
stopping rule, all n-best.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import (
    BeamSearch,
    Greedy,
    Hypothesis,
    Limit,
    PowerPenalty,
    Strategy,
)
from regard.families import folder as folders
from seeds import SEEDS
from zoo import perturb

pytestmark = pytest.mark.thorough

transformers = pytest.importorskip("transformers")

STEPS, VOCABULARY = 9, 31
KIN = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 34, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
PAIR = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 34,
    "decoder_ffn_dim": 30,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 1,
    "bos_token_id": 1,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 5,
    "d_ff": 34,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 13,
    "decoder_start_token_id": 0,
}
CAUSAL: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**KIN, num_key_value_heads=2),
    "mistral": lambda: transformers.MistralConfig(**KIN, num_key_value_heads=2, sliding_window=4),
    "qwen2": lambda: transformers.Qwen2Config(**KIN, num_key_value_heads=4),
    "gemma": lambda: transformers.GemmaConfig(**KIN, num_key_value_heads=1, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(
        **KIN, num_key_value_heads=2, head_dim=8, sliding_window=4, attn_logit_softcapping=3.0
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **KIN, num_key_value_heads=1, head_dim=8, sliding_window=4, sliding_window_pattern=2
    ),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **{**KIN, "intermediate_size": 36},
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=4,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4
    ),
    "gpt": lambda: transformers.OpenAIGPTConfig(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4
    ),
    "neox": lambda: transformers.GPTNeoXConfig(**KIN, rotary_pct=0.5),
}
SEQUENCES: dict[str, Any] = {
    "t5 1.0": lambda: transformers.T5Config(**T5),
    "t5 1.1": lambda: transformers.T5Config(
        **T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    ),
    "bart": lambda: transformers.BartConfig(**PAIR),
    "mbart": lambda: transformers.MBartConfig(**PAIR),
    "marian": lambda: transformers.MarianConfig(**PAIR),
    "pegasus": lambda: transformers.PegasusConfig(**PAIR),
}
STOPS = {"full": True, "likely": False, "certain": "never"}


class Case(NamedTuple):
    theirs: Any
    ours: Any
    prompts: list[list[int]]
    end: int
    start: int | None

    @property
    def ends(self) -> SpecialTokens:
        return SpecialTokens(0, self.start, self.end)

    def generated(self, **settings: Any) -> list[list[int]]:
        """The rows of transformers, each up to its end."""
        longest = max(len(prompt) for prompt in self.prompts)
        tokens, padding_mask = torch.zeros(2, len(self.prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(self.prompts):
            place = (
                slice(longest - len(prompt), longest)
                if self.start is None
                else slice(0, len(prompt))
            )
            tokens[row, place], padding_mask[row, place] = torch.tensor(prompt), 1
        out = self.theirs.generate(
            input_ids=tokens,
            attention_mask=padding_mask,
            do_sample=False,
            max_new_tokens=STEPS,
            eos_token_id=self.end,
            pad_token_id=0,
            **settings,
        )
        rows = out[:, longest if self.start is None else 1 :].tolist()
        return [row[: row.index(self.end) + 1] if self.end in row else row for row in rows]

    def generated_apart(self, **settings: Any) -> list[list[int]]:
        """Each prompt by itself: where there are several, transformers counts their padding too."""
        if self.start is not None:
            return self.generated(**settings)
        apart = [self._replace(prompts=[prompt]) for prompt in self.prompts]
        return [row for case in apart for row in case.generated(**settings)]

    def decoded(
        self, strategy: Strategy, ends: SpecialTokens | None = None, **rules: Any
    ) -> list[list[int]]:
        result = decode(
            self.ours,
            self.prompts,
            ends or self.ends,
            DecodingSettings(strategy, Limit.fixed(STEPS), **rules),
        )
        return [self.row(hypothesis) for hypotheses in result for hypothesis in hypotheses]

    def row(self, hypothesis: Hypothesis) -> list[int]:
        return [*hypothesis.tokens, self.end] if hypothesis.finished else [*hypothesis.tokens]


def case(name: str, seed: int, out: Path) -> Case:
    """A random model, and as its end a token that it likes to say after a few steps."""
    torch.manual_seed(seed)
    kind = (
        transformers.AutoModelForCausalLM if name in CAUSAL else transformers.AutoModelForSeq2SeqLM
    )
    model = kind.from_config({**CAUSAL, **SEQUENCES}[name](), attn_implementation="eager").eval()
    perturb(model, 0.15)
    model.save_pretrained(out)
    ours, opened = folders.open_model(out)
    chance = torch.Generator().manual_seed(seed)
    lengths = (
        (5, 5, 5) if name == "gpt" else (5, 2, 8, 5)
    )  # transformers' GPT does not skip the padding's positions
    prompts = [torch.randint(3, VOCABULARY, (n,), generator=chance).tolist() for n in lengths]
    result = Case(model, ours, prompts, -1, opened.ids.start if opened.ids else None)
    fourth_tokens = [row[3] for row in result.generated(num_beams=4, early_stopping=True)]
    return result._replace(end=next(token for token in fourth_tokens if token != 0))


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("name", [*CAUSAL, *SEQUENCES])
def test_the_same_tokens(name: str, seed: int, tmp_path: Path) -> None:
    models = case(name, seed, tmp_path)
    assert models.generated(num_beams=1) == models.decoded(Greedy())
    lengths = set()
    for width, penalty in ((4, 1.0), (2, 0.0), (3, 2.0), (4, -0.7)):
        for stop, early in STOPS.items():
            wanted = models.generated(
                num_beams=width,
                length_penalty=penalty,
                early_stopping=early,
                num_return_sequences=width,
            )
            strategy = BeamSearch(width, PowerPenalty(penalty), width, "refilled", stop)  # type: ignore[arg-type]
            assert models.decoded(strategy) == wanted, (width, penalty, stop)
            lengths |= {len(row) for row in wanted}
    assert len(lengths) > 2, "this model says nothing about stopping"


@pytest.mark.parametrize("name", ["bart", "t5 1.0", "llama", "gpt2"])
def test_no_run_twice_and_no_early_end(name: str, tmp_path: Path) -> None:
    models = case(name, 1, tmp_path)
    free = models.decoded(Greedy())
    changed = 0
    for size, least in ((1, 0), (2, 0), (3, 0), (0, 5), (2, 7), (STEPS + 20, 1)):
        theirs: dict[str, Any] = {"no_repeat_ngram_size": size, "min_new_tokens": least}
        result = models.decoded(Greedy(), min_new_tokens=least, no_repeat_ngram_size=size)
        assert result == models.generated_apart(num_beams=1, **theirs), (size, least)
        changed += result != free
        for width, stop in ((3, "full"), (4, "likely")):
            strategy = BeamSearch(width, PowerPenalty(1.5), width, "refilled", stop)  # type: ignore[arg-type]
            early: dict[str, Any] = {"early_stopping": STOPS[stop], "num_return_sequences": width}
            wanted = models.generated_apart(num_beams=width, length_penalty=1.5, **early, **theirs)
            assert (
                models.decoded(strategy, min_new_tokens=least, no_repeat_ngram_size=size) == wanted
            ), (
                size,
                least,
                width,
            )
    assert changed >= 3, "these rules forbade nothing"


@pytest.mark.parametrize("name", ["bart", "t5 1.0", "llama", "gpt2"])
def test_repetition_is_penalized(name: str, tmp_path: Path) -> None:
    models = case(name, 1, tmp_path)
    changed = 0
    for penalty in (1.3, 5.0, 0.7):
        ours: dict[str, Any] = {"repetition_penalty": penalty}
        theirs: dict[str, Any] = {**ours}
        found = models.decoded(Greedy(), **ours)
        assert found == models.generated_apart(num_beams=1, **theirs)
        changed += found != models.decoded(Greedy())
        found = models.decoded(BeamSearch(3, PowerPenalty(1.5), 3, "refilled", "likely"), **ours)
        early = {"early_stopping": False, "num_return_sequences": 3, "length_penalty": 1.5}
        assert found == models.generated_apart(num_beams=3, **early, **theirs)
    assert changed, "this rule changed nothing"


@pytest.mark.parametrize("name", ["bart", "mbart", "llama"])
def test_forced_first_and_last_tokens(name: str, tmp_path: Path) -> None:
    models = case(name, 5, tmp_path)
    ends = SpecialTokens(0, models.start, models.end, forced_bos=7, forced_eos=True)
    forced = {"forced_bos_token_id": 7, "forced_eos_token_id": models.end}
    if (
        name == "llama"
    ):  # transformers forces the first token of a whole sequence, which a prompt has already
        ends, forced = (
            SpecialTokens(0, None, models.end, forced_eos=True),
            {"forced_eos_token_id": models.end},
        )
    assert models.generated(num_beams=1, **forced) == models.decoded(Greedy(), ends)
    for stop, early in STOPS.items():
        wanted = models.generated(num_beams=4, length_penalty=1.5, early_stopping=early, **forced)
        assert models.decoded(BeamSearch(4, PowerPenalty(1.5), 1, "refilled", stop), ends) == wanted  # type: ignore[arg-type]
        assert all(row[-1] == models.end for row in wanted)
