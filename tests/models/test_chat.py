"""Chats: a model's template writes messages as transformers does, in a sandbox, and is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from forked_command import run_command
from regard.data.text.chat_template import ChatTemplate
from regard.data.text.tokenizer_training import SpecialTokenTemplate, train_lossless_tokenizer
from regard.models import LanguageModel
from regard.system.errors import DataError, ModelError

transformers = pytest.importorskip("transformers")

CHAT_ML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
# Roles that must alternate, the system message within the first user's; a start token.
ALTERNATING = """\
{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + ' ' %}
{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{{ bos_token }}{% for m in rest %}
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}
{% endif %}
{% if m['role'] == 'user' %}[INST] {{ (first if loop.first else '') + m['content'] }} [/INST]
{% else %}{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}{% endif %}
{% endfor %}
"""
# What else templates use: tools as JSON, a namespace, loop controls, variables of the caller.
TOOLS = """\
{%- set ns = namespace(calls=0) -%}
{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{{ tool | tojson(indent=2) }}
{%- endfor %}</tools>{% endif -%}
{%- for m in messages %}
  {%- if m.role == 'tool' %}{% set ns.calls = ns.calls + 1 %}{% continue %}{% endif %}
  {{- m.role.upper() }}: {{ m.content if m.content is string else m.content[0].text }}
{% endfor -%}
{{ ns.calls }}{{ '<think>' if enable_thinking is defined and enable_thinking }}{{ unk_token }}
"""
TEMPLATES = {"chatml": CHAT_ML, "alternating": ALTERNATING, "tools": TOOLS}
CONVERSATION = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": " The dog sees a cat? "},
    {"role": "assistant", "content": "A bird; naïve 😀"},
    {"role": "user", "content": "The cat?"},
]
WORDS = ["The dog sees a cat. The cat sees a bird; naïve 😀 birds sing.\n" * 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with a start token, and the tokens of ChatML in its tokenizer."""
    place = tmp_path_factory.mktemp("chat")
    specials = ("<s>", "<|im_start|>", "<|im_end|>")
    template = SpecialTokenTemplate(specials, "<s> $A")
    words = train_lossless_tokenizer(WORDS, "bpe", 320, template)
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=0,
        eos_token_id=2,
    )
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(place)
    (place / "tokenizer.json").write_text(words.to_json())
    write_settings(place)
    (place / "chat_template.jinja").write_text(CHAT_ML)
    return place


def write_settings(folder: Path, **more: Any) -> None:
    """tokenizer_config.json, where a special token may be an object with its options."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"content": "<s>", "__type": "AddedToken"},
        "eos_token": "<|im_end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **more}))


def reopen(folder: Path) -> LanguageModel:
    return regard.load(folder, LanguageModel)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("place", ["file", "config", "list"])
def test_messages_are_written_as_by_transformers(folder: Path, name: str, place: str) -> None:
    source = TEMPLATES[name]
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    if place == "file":
        write_settings(folder, chat_template="of old")
        (folder / "chat_template.jinja").write_text(source)
    elif place == "config":
        write_settings(folder, chat_template=source)
    else:
        named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": source}]
        write_settings(folder, chat_template=named)
    model = reopen(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    variables: dict[str, Any] = {}
    if name == "tools":
        tool = {"type": "function", "function": {"name": "größe", "parameters": {"a": "<int>"}}}
        variables = {"tools": [tool], "enable_thinking": True, "chat_template": source}
    for add_generation_prompt in (False, True):
        expected = theirs.apply_chat_template(
            CONVERSATION,
            add_generation_prompt=add_generation_prompt,
            return_dict=False,
            **variables,
        )
        text = model.render_chat(
            CONVERSATION, add_generation_prompt=add_generation_prompt, **variables
        )
        assert model.tokenizer.encode(text) == expected
    (folder / "chat_template.jinja").write_text(CHAT_ML)
    write_settings(folder)


def test_an_answer_continues_the_rendered_conversation(folder: Path) -> None:
    model = reopen(folder)
    assert "chat" in model.tasks
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    ids = words.apply_chat_template(
        CONVERSATION, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    mask = torch.ones_like(ids)  # or it would be guessed from the padding token
    out = theirs.generate(
        ids, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=1
    )
    expected = words.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    pieces: list[str] = []
    assert model.chat(CONVERSATION, max_new_tokens=12, stream=pieces.append) == expected
    assert "".join(pieces) == expected


def test_the_command_prints_the_answer_alone(folder: Path) -> None:
    model = reopen(folder)
    system = {"role": "system", "content": "Be brief."}
    message = {"role": "user", "content": "The dog"}
    flags = ("--greedy", "--max-new-tokens", "5")
    done = run_command("generate", str(folder), "The dog", "--chat", *flags, cwd=folder)
    assert done.stdout == model.chat([message], max_new_tokens=5) + "\n", done.stderr
    done = run_command(
        "generate", str(folder), "The dog", "--system", "Be brief.", *flags, "--json", cwd=folder
    )
    answer = model.chat([system, message], max_new_tokens=5)
    assert json.loads(done.stdout) == {"prompt": "The dog", "text": answer}


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ dict.__subclasses__() }}{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{% set _ = messages.append('x') %}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ messages[0].content.missing.deeper }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_can_do_nothing_but_read(source: str) -> None:
    with pytest.raises(DataError):
        ChatTemplate(source).render(CONVERSATION)


def test_wrong_messages_and_templates(folder: Path, tmp_path: Path) -> None:
    template = ChatTemplate(ALTERNATING, {"bos_token": "<s>"})
    for messages in ([], "Hello", [{"content": "x"}], [{"role": "user", "content": b"x"}]):
        with pytest.raises(DataError):
            template.render(messages)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="alternate"):
        template.render([CONVERSATION[1], CONVERSATION[3]])
    with pytest.raises(ModelError):
        ChatTemplate("{% if %}").render(CONVERSATION)
    saved = reopen(folder).save(tmp_path / "copy")
    assert (saved / "chat_template.jinja").read_text() == CHAT_ML
    (saved / "chat_template.jinja").unlink()
    without = reopen(saved)
    assert "chat" not in without.tasks
    with pytest.raises(ModelError):
        without.chat(CONVERSATION)
