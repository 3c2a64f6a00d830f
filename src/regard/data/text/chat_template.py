"""Chat templates: the messages of a conversation as the text that a chat model was trained on.

A template is a program in Jinja's language, and comes with the model. It runs in Jinja's sandbox:
it can read the messages and nothing else, and change nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from regard.data.text.tokenizer_files import named_special_tokens, read_tokenizer_settings
from regard.system import disk
from regard.system.errors import DataError, ModelError

if TYPE_CHECKING:
    from jinja2 import Template

FILE = "chat_template.jinja"
Message = Mapping[str, Any]  # {"role": "user", "content": "…"}


class ChatTemplate:
    """A chat template and the special tokens that it may name, such as `bos_token`."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens or {})

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The text of the messages, special tokens included.

        `add_generation_prompt` appends the beginning of the model's next message. `variables` are
        what else the template reads, such as `tools`.
        """
        # Plain values: the methods of other objects would be open to the template.
        try:
            plain = json.loads(json.dumps([messages, variables], allow_nan=False))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"the messages are no JSON: {error}", "pass texts, numbers, lists and dictionaries"
            ) from None
        conversation, variables = plain
        _check_messages(conversation)
        names = {**self.special_tokens, "tools": None, "documents": None, **variables}
        template = self._template
        try:
            return template.render(
                messages=conversation, add_generation_prompt=add_generation_prompt, **names
            )
        except Exception as error:  # of whatever the template computes
            raise DataError(
                f"the chat template of this model refuses the messages: {error}",
                "pass the roles and contents that it expects",
            ) from error

    @functools.cached_property
    def _template(self) -> Template:
        from jinja2 import TemplateError

        try:
            return _environment().from_string(self.source)
        except TemplateError as error:
            raise ModelError(
                f"the chat template of this model cannot be read: {error}",
                f"download {FILE} again",
            ) from error


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a model folder: chat_template.jinja, or as tokenizer_config.json has it.

    Of several templates in tokenizer_config.json, the one that is called `default`. None where
    there is no template.
    """
    if (folder / FILE).is_file():
        source: Any = disk.read_text(folder / FILE, ModelError)
    else:
        source = read_tokenizer_settings(folder).get("chat_template")
        if isinstance(source, list):
            templates = {one.get("name"): one.get("template") for one in source}
            source = templates.get("default")
    if not isinstance(source, str):
        return None
    tokens = named_special_tokens(folder)
    return ChatTemplate(source, {f"{role}_token": token for role, token in tokens.items()})


def _check_messages(messages: Any) -> None:
    """`DataError` unless it is a list of messages, each with its role."""
    are_messages = isinstance(messages, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages
    )
    if not are_messages or not messages:
        raise DataError(
            f"{str(messages)[:60]} is no list of messages",
            'pass [{"role": "user", "content": "…"}, …]',
        )


# ------------------------------------------------------------------ Jinja, as transformers sets it


@functools.cache
def _environment() -> Any:
    """A sandbox with the filters, functions and tags that chat templates are written for."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %} … {% endgeneration %}` marks what the assistant said, for training."""

        tags = {"generation"}  # noqa: RUF012  # a class attribute of Jinja

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        # Jinja's own filter escapes the characters of HTML.
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, LoopControlExtension]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        # A function instead of the class, whose attributes would be open to the template.
        "dict": lambda *pairs, **entries: dict(*pairs, **entries),
    }
    return environment
