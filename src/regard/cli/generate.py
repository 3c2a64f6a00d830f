"""regard generate"""

from __future__ import annotations

import json
import sys

import click

EXAMPLES = """\b
Examples:
  regard generate runs/shakespeare "ROMEO:" --max-new-tokens 500 --temperature 0.8
  regard generate gpt2/ "The Transformer is" --greedy
  regard generate gpt2/ - --top-p 0.9 --seed 7 < prompt.txt
  regard generate gpt2/ "Once upon a time" --beam 4 --json
"""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("model")
@click.argument("prompt", required=False)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=None,
    help="tokens to add at most  [the folder's, or 200]",
)
@click.option(
    "--temperature", type=float, default=None, help="sampling: logits are divided by it  [1]"
)
@click.option(
    "--top-k", type=int, default=None, help="sampling: only the K likeliest tokens  [all]"
)
@click.option(
    "--top-p",
    type=float,
    default=None,
    help="sampling: the smallest set with this probability  [1]",
)
@click.option(
    "--min-p", type=float, default=None, help="sampling: at least this share of the likeliest  [0]"
)
@click.option("--seed", type=int, default=None, help="sampling: the same seed, the same text  [0]")
@click.option(
    "--greedy", is_flag=True, help="take the likeliest token each time instead of sampling"
)
@click.option(
    "--beam", type=int, default=None, help="search with this many hypotheses instead of sampling"
)
@click.option(
    "--draft",
    default=None,
    help="a smaller model with the same tokenizer that writes ahead: the same text, sooner",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N")
@click.option(
    "--json", "as_json", is_flag=True, help="print one JSON object at the end instead of streaming"
)
def command(
    model: str,
    prompt: str | None,
    max_new_tokens: int | None,
    greedy: bool,
    beam: int | None,
    draft: str | None,
    device: str,
    as_json: bool,
    **filters: float | None,
) -> None:
    """Go on from PROMPT, and print it with what follows, token by token.

    MODEL is a run folder, or a folder in Hugging Face's layout, of a language model. PROMPT may be - or left out: then it is
    read from standard input, exactly as it is. Tokens are drawn by chance, unless --greedy or --beam is given or the
    folder's generation_config.json says how; the text ends with the model's end token or after --max-new-tokens.
    """
    from regard.cli.decoding_options import writing
    from regard.decode.strategy import Sampling
    from regard.errors import DataError

    chosen = writing(greedy, beam, filters)
    if prompt in (None, "-"):
        from regard.data.text_files import text

        prompt = "" if sys.stdin.isatty() else "".join(text("-"))
    assert prompt is not None
    from regard.models import load_writer

    writer = load_writer(model, device=device)
    helper = None if draft is None else load_writer(draft, device=device)
    chosen = chosen or writer.defaults.strategy or Sampling()
    if writer.defaults.most is None and writer.defaults.most_new is None:
        max_new_tokens = max_new_tokens or 200
    unknown_id = writer.words.special_token_id("unk")
    unknown = [i for i in writer.words.encode(prompt) if i == unknown_id]
    if unknown:
        print(
            f"{len(unknown)} characters or words of the prompt are not in the vocabulary",
            file=sys.stderr,
        )
    if as_json:
        answer = writer.generate(prompt, chosen, max_new_tokens=max_new_tokens, draft=helper)
        click.echo(json.dumps({"prompt": prompt, "text": answer}, ensure_ascii=False))
        return
    try:
        prompt.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        raise DataError(
            f"this terminal cannot show the prompt ({sys.stdout.encoding})", "set PYTHONUTF8=1"
        ) from None
    _show(prompt)
    writer.generate(prompt, chosen, max_new_tokens=max_new_tokens, stream=_show, draft=helper)
    _show("\n")


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
