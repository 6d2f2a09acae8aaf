"""Messages of a chat as one prompt, by the template in the model's file. A template is a stranger's program: it runs in Jinja's
immutable sandbox, and what leaves it is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from datetime import datetime
from functools import lru_cache
from typing import NoReturn, TypeAlias

import jinja2
import jinja2.ext
import jinja2.utils
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bricolage.errors import BadMessage, BadTemplate

Message: TypeAlias = Mapping[str, object]
"""`role` and `content`; a content is a text, or parts `{"type": "text", "text": …}`."""
_LONGEST = 1_000_000
"""Letters or elements that a template may make of one by multiplying."""
_MOST_BITS = 4096
"""Of a power."""


class _Environment(ImmutableSandboxedEnvironment):
    """Refuses what fills the memory, too."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """See Jinja."""
        match operator, left, right:
            case "**", int(), int() if left.bit_length() * right > _MOST_BITS:
                raise SecurityError("a power is too high")
            case ("*", Sized() as text, int(count)) | ("*", int(count), Sized() as text) if (
                len(text) * count > _LONGEST
            ):
                raise SecurityError("a text is too long")
            case _:
                pass
        return super().call_binop(context, operator, left, right)


class _Namespace(jinja2.utils.Namespace):
    """Refuses names that lead to what Python keeps of an object."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no name '{name}'")
        super().__setitem__(name, value)


def render_chat(template: str, messages: Sequence[Message], names: Mapping[str, str], *, answer: bool = True) -> str:
    """The prompt of a chat.

    Args:
        template: Jinja's language, as Transformers has it in tokenizers.
        messages: in order.
        names: texts that the template refers to: `bos_token`, `eos_token`.
        answer: whether the answer's beginning is added, so that the model goes on with it.

    Raises:
        BadTemplate: it is no template, runs code outside of the sandbox, or refuses the messages.
        BadMessage: a message has no role or no text.
    """
    chat = [_plain_message(index, message) for index, message in enumerate(messages)]
    try:
        return _compile(template).render(messages=chat, add_generation_prompt=answer, **names)
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise BadTemplate(reason=error) from error
    except (RecursionError, MemoryError) as error:
        raise BadTemplate(reason=f"it takes too much memory ({type(error).__name__})") from error


def _plain_message(index: int, message: Message) -> dict[str, object]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise BadMessage(index=index, reason="it has no role")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(_part_text(index, part) for part in content)
    if not isinstance(content, str):
        raise BadMessage(index=index, reason="it has no text")
    return {**message, "content": content}


def _part_text(index: int, part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise BadMessage(index=index, reason=f"its content has a part of type '{kind}', and not of text")


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["namespace"] = _Namespace
    environment.globals["strftime_now"] = _format_now
    return environment.from_string(template)


def _to_json(value: object, indent: int | None = None) -> str:
    """Jinja's own filter writes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _format_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
