"""regard generate"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from regard.cli.batch_work import (
    INPUT_HELP,
    BatchWork,
    check_input,
    column_option,
    output_option,
    refuse_column,
)
from regard.cli.decoding_options import generation_strategy, sampling_options
from regard.cli.shared_options import (
    COUNT,
    FILE,
    MODEL_FOLDER,
    PENALTY,
    Flags,
    device_option,
    download_option,
    flag,
    json_option,
    json_text,
    option,
)
from regard.cli.texts_and_files import check_is_text, piped
from regard.system.errors import DataError

if TYPE_CHECKING:
    from regard.models import LanguageModel

DEFAULT_NEW_TOKENS = 200
PROMPTS_AT_ONCE = 256  # of files: enough to batch, few enough to lose little by a crash
EXAMPLES = """\b
Examples:
  regard generate runs/shakespeare "ROMEO:" --max-new-tokens 500 --temperature 0.8
  regard generate gpt2/ "The Transformer is" --greedy
  regard generate gpt2/ - --top-p 0.9 --seed 7 < prompt.txt
  regard generate gpt2/ "Once upon a time" --beam 4 --json
  regard generate gpt2/ "Q: Who?\nA:" --stop "\nQ:" -n 3
  regard generate qwen/ "Who was Ada Lovelace?" --chat
  regard generate gpt2/ --input prompts.parquet --output texts.jsonl     resumable
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", type=MODEL_FOLDER)
@click.argument("prompt", required=False)
@option("--input path", f"read one prompt per line instead of PROMPT: {INPUT_HELP}", FILE)
@output_option
@column_option
@option("--max-new-tokens", "maximum number of new tokens  [the model's setting, or 200]", COUNT)
# Sampling is the default here, as a language model's continuation is not one right answer.
@sampling_options
@flag("--greedy", "greedy decoding: always take the most likely token")
@option("--beam", "beam search with this many hypotheses instead of sampling", COUNT)
@flag("--truncation", "truncate prompts that are too long for MODEL, from the left")
@option(
    "--draft",
    "smaller model with the same tokenizer for speculative decoding: faster, same text",
    MODEL_FOLDER,
)
@flag("--chat", "PROMPT is a user's message, written by the model's chat template")
@option("--system", "as --chat, with this system message before it")
@option("--stop", "end the continuation before this text; several times for several", multiple=True)
@option("--repetition-penalty", "above 1, tokens that were read become less likely  [1]", PENALTY)
@option(
    "-n --num-return-sequences count",
    "number of continuations",
    COUNT,
    default=1,
)
@device_option
@download_option
@json_option("print one JSON object for each continuation at the end instead of streaming")
def command(
    model: str,
    prompt: str | None,
    path: str | None,
    max_new_tokens: int | None,
    greedy: bool,
    beam: int | None,
    draft: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Continue PROMPT and print it with the continuation, token by token.

    MODEL is a language model: a run folder or a folder in Hugging Face format. If PROMPT is - or
    omitted, it is read verbatim from standard input. Tokens are sampled unless --greedy or --beam
    is given or the folder's generation_config.json sets a strategy; generation stops at the model's
    end token or after --max-new-tokens. With --input, prompts come from files of any size and the
    output is one JSON object per line; with --output as well, the job can be resumed. With --chat,
    PROMPT is a message to a chat model, and only its answer is printed.
    """
    # Wrong flags are reported before torch is loaded.
    strategy = generation_strategy(greedy, beam, flags)
    check_input("prompt", path)
    if path is None:
        refuse_column()
    if path is None and prompt in (None, "-"):
        prompt = _read_prompt()
    elif prompt is not None:
        command = f"generate {quote(model)}"
        check_is_text(prompt, piped(prompt, command), f"regard {command} < {quote(prompt)}")
    from regard.decode.strategy import Sampling
    from regard.models import LanguageModel, load

    language_model = load(model, LanguageModel, device=flags["device"], download=flags["download"])
    chat = flags["chat"] or flags["system"] is not None
    as_read: Callable[[str], str] = str
    before = prompt or ""
    if chat:
        as_read = partial(_chat_prompt, language_model, flags["system"])
        before = ""  # an answer stands by itself
    draft_model = None if draft is None else load(draft, LanguageModel, device=flags["device"])
    defaults = language_model.defaults
    # Flags come first, then generation_config.json, then sampling from the full distribution.
    strategy = strategy or defaults.strategy or Sampling()
    if defaults.max_length is None and defaults.max_new_tokens is None:
        max_new_tokens = max_new_tokens or DEFAULT_NEW_TOKENS
    options: Flags = {
        "max_new_tokens": max_new_tokens,
        "draft": draft_model,
        **{name: flags[name] for name in ("truncation", "stop", "repetition_penalty")},
        "num_return_sequences": flags["count"],
        "add_special_tokens": not chat,
    }
    if path is not None:

        def answer(prompts: list[str], first_index: int) -> str:
            inputs = [as_read(prompt) for prompt in prompts]
            texts = language_model.generate(inputs, strategy, first_index=first_index, **options)
            pairs = zip(prompts, texts, strict=True)
            return "".join(f"{_json_lines(one, text)}\n" for one, text in pairs)

        BatchWork(PROMPTS_AT_ONCE, answer).run_files()
        return
    assert prompt is not None
    if as_json:
        # Not streamed: the object is complete or not printed.
        texts = language_model.generate(as_read(prompt), strategy, **options)
        click.echo(_json_lines(prompt, texts))
        return
    try:
        # Fails before the model runs, not at the first character that cannot be printed.
        prompt.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"this terminal cannot show the prompt ({error.encoding})", "set PYTHONUTF8=1"
        ) from None
    if flags["count"] > 1:
        for text in language_model.generate(as_read(prompt), strategy, **options):
            click.echo(before + text)
        return
    stream = _Stream(before)
    try:
        language_model.generate(as_read(prompt), strategy, stream=stream, **options)
        stream("")  # a text that ends at once is its prompt
    finally:
        stream.end()


# ------------------------------------------------------------------ text in and out


def _chat_prompt(model: LanguageModel, system: str | None, message: str) -> str:
    """A user's message as the model's chat template writes it."""
    messages = [{"role": "user", "content": message}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return model.render_chat(messages)


def _json_lines(prompt: str, texts: str | list[str]) -> str:
    """A line for each continuation of a prompt."""
    texts = [texts] if isinstance(texts, str) else texts
    return "\n".join(json_text({"prompt": prompt, "text": text}) for text in texts)


def _read_prompt() -> str:
    """Standard input, newlines included; nothing from a terminal, where nobody has typed yet."""
    from regard.data.text_files import text

    if sys.stdin.isatty():
        return ""  # the model begins with its start token
    return "".join(text("-"))


class _Stream:
    """Prints the prompt and, at once, each piece that follows it.

    The prompt is printed too, because what follows may begin in the middle of a word; but with the
    first piece, so that settings which are refused leave nothing on standard output.
    """

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.begun = False

    def __call__(self, piece: str) -> None:
        if not self.begun:
            self.begun = True
            piece = self.prompt + piece
        click.echo(piece, nl=False)  # which flushes

    def end(self) -> None:
        if self.begun:
            click.echo()  # an error, too, begins on a line of its own
