"""Templates against Transformers' own rendering, and strangers' templates that want more than to be rendered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bricolage.api.text_generation import open_text_model
from bricolage.errors import BadMessage, BadTemplate, MissingLibrary
from bricolage.language.chat_template import render_chat

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Was heißt »bricolage« & why <b>?"},
    {"role": "assistant", "content": "Basteln."},
    {"role": "user", "content": "Danke"},
]
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nHi"
        "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "blocks": (
        "{{- bos_token }}\n{%- set ns = namespace(turns=0) %}\n{%- for message in messages %}\n    {%- set ns.turns = ns.turns"
        " + 1 %}\n    {%- if message.role == 'system' %}\n        {%- continue %}\n    {%- endif %}\n"
        "[{{ ns.turns }} {{ message.role | upper }}] {{ message.content | trim }}{{ eos_token }}\n{%- endfor %}\n"
        "{{ messages | tojson }} {{ '-' * 3 }} {{ 2 ** 3 }}\n{%- if add_generation_prompt %}\nGO\n{%- endif %}"
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("answer", [True, False])
def test_rendered_as_transformers_does(name: str, answer: bool) -> None:
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    for chat in (CHAT, CHAT[1:]):
        expected, _ = utilities.render_jinja_template(
            [chat], chat_template=TEMPLATES[name], add_generation_prompt=answer, **NAMES
        )
        assert render_chat(TEMPLATES[name], chat, NAMES, answer=answer) == expected[0]


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('touch /tmp/ran').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'].system('true') }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ ('%s' | format).__globals__ }}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ 10 ** 9 * [1] }}",
        "{{ 9 ** 9999 ** 9 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ raise_exception('roles must alternate') }}",
        "{% if %}",
        "{{ messages[99].content.x }}",
        "{{ 1 / 0 }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    ],
)
def test_a_template_that_leaves_its_sandbox(template: str) -> None:
    with pytest.raises(BadTemplate):
        render_chat(template, CHAT, NAMES)


def test_contents_in_parts() -> None:
    parts = [{"type": "text", "text": "Was "}, {"type": "text", "text": "nun?"}]
    assert render_chat("{{ messages[0].content }}", [{"role": "user", "content": parts}], {}) == "Was nun?"


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"role": "user"},
        {"role": "user", "content": 3},
        {"role": "user", "content": [{"type": "image_url"}]},
    ],
    ids=str,
)
def test_messages_without_text(message: dict[str, object]) -> None:
    with pytest.raises(BadMessage, match="message 1"):
        render_chat("{{ messages }}", [CHAT[0], message], NAMES)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)  # as where it is not installed
    for name in ("chat_template", "language_model", "open_language"):
        monkeypatch.delitem(sys.modules, f"bricolage.language.{name}", raising=False)
    with pytest.raises(MissingLibrary, match="jinja2 is needed to generate text.*pip install"):
        open_text_model(tmp_path / "model.gguf")
