"""Rules of others as equations between terms: TASO's file, and its text as Tensat writes it.

Three forms are read (jiazhihao/TASO `graph_subst.pb`, `src/core/rules.proto`; uwplse/tensat `taso_rules.txt` and `converted.txt`):

    matmul(matmul(a,b),c)==matmul(a,matmul(b,c))        any number of equations one after another
    (matmul 0 (matmul 0 ?a ?b) ?c)=>(matmul 0 ?a …)     an equation a line
    TASO's protocol buffer                              a rule has several equations where it has several outputs

Numbers that lead the arguments are attributes: of `conv2d` strides, padding (0 same, 1 valid) and activation, of `concat` axis and
rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.errors import BadEquationFile

_TOKEN = re.compile(r"\s*(==|=>|[(),]|\?[A-Za-z_]\w*|[A-Za-z_]\w*|-?\d+)")
_END = ""


@dataclass(frozen=True)
class Term:
    """An operator on terms, with its leading numbers; a variable is one without either."""

    name: str
    numbers: tuple[int, ...] = ()
    terms: tuple[Term, ...] = ()

    @property
    def is_variable(self) -> bool:
        """Whether it is any tensor."""
        return not self.numbers and not self.terms and self.name not in _CONSTANTS

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the tensors that it is computed from, each once, in the order of reading."""
        names = [self.name] if self.is_variable else [name for term in self.terms for name in term.variables]
        return tuple(dict.fromkeys(names))

    def __str__(self) -> str:
        inner = [*map(str, self.numbers), *map(str, self.terms)]
        return f"{self.name}({','.join(inner)})" if inner else self.name


_CONSTANTS = frozenset({"Imatmul", "Iewmul"})
"""Names without arguments that are no variables."""


@dataclass(frozen=True)
class TermEquation:
    """Two terms that are stated to be equal."""

    left: Term
    right: Term

    def __str__(self) -> str:
        return f"{self.left} == {self.right}"


class _Wrong(Exception):
    """What is wrong, and on which line."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


def read_equations(path: Path) -> list[TermEquation]:
    """The equations of a file, each once, in its order.

    Raises:
        BadEquationFile: it has none of the three forms, or no equation.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadEquationFile(path=path, line=0, reason=str(error)) from error
    try:
        equations = list(_binary(raw) if b"\x00" in raw or not _is_text(raw) else _text(raw.decode()))
    except _Wrong as error:
        raise BadEquationFile(path=path, line=error.line, reason=str(error)) from error
    if not equations:
        raise BadEquationFile(path=path, line=0, reason="it has no equation")
    return list(dict.fromkeys(equations))


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# Text.


class _Reader:
    """Tokens of a text, with the line of each."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, int]] = []
        position, line, text = 0, 1, text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _Wrong(f"'{text[position : position + 20].strip()}' is no part of an equation", line)
            line += match.group().count("\n")
            self._tokens.append((match.group(1), line))
            position = match.end()
        self._next = 0

    @property
    def token(self) -> str:
        """The next one; empty at the end."""
        return self._tokens[self._next][0] if self._next < len(self._tokens) else _END

    @property
    def line(self) -> int:
        """Of the next token."""
        return self._tokens[min(self._next, len(self._tokens) - 1)][1] if self._tokens else 1

    def take(self) -> str:
        """The next token, which is passed."""
        token = self.token
        self._next += 1
        return token

    def expect(self, *tokens: str) -> str:
        """Passes one of these.

        Raises:
            _Wrong: there is another.
        """
        line, token = self.line, self.take()
        if token not in tokens:
            raise _Wrong(f"'{token}' stands where {' or '.join(tokens)} is expected", line)
        return token


def _text(text: str) -> Iterator[TermEquation]:
    reader = _Reader(text)
    while reader.token:
        left = _term(reader)
        reader.expect("==", "=>")
        yield TermEquation(left, _term(reader))


def _term(reader: _Reader) -> Term:
    """A term in either notation; in the one with the operator inside the parenthesis, what has none is a variable."""
    if reader.token == "(":
        reader.take()
        name, given = _name(reader), list[str | Term]()
        while reader.token not in (")", _END):
            given.append(_argument(reader, Term(_name(reader)) if _is_name(reader.token) else None))
        reader.expect(")")
        return _build_term(name, given, reader.line)
    name, given = _name(reader), []
    if reader.token != "(":
        return Term(name)
    reader.take()
    while True:
        given.append(_argument(reader))
        if reader.expect(",", ")") == ")":
            return _build_term(name, given, reader.line)


def _argument(reader: _Reader, variable: Term | None = None) -> str | Term:
    return variable or (reader.take() if _is_number(reader.token) else _term(reader))


def _is_name(token: str) -> bool:
    return re.fullmatch(r"\??[A-Za-z_]\w*", token) is not None


def _name(reader: _Reader) -> str:
    line, name = reader.line, reader.take()
    if not _is_name(name):
        raise _Wrong(f"'{name}' stands where a name is expected", line)
    return name.lstrip("?")


def _is_number(token: str) -> bool:
    return re.fullmatch(r"-?\d+", token) is not None


def _build_term(name: str, given: Sequence[str | Term], line: int) -> Term:
    numbers = [argument for argument in given if isinstance(argument, str)]
    terms = [argument for argument in given if isinstance(argument, Term)]
    if list(given) != [*numbers, *terms]:
        raise _Wrong(f"numbers stand behind terms in {name}", line)
    return Term(name, tuple(map(int, numbers)), tuple(terms))


# TASO's protocol buffer.

_TYPES = {3: "conv2d", 8: "relu", 12: "concat", 13: "split", 16: "ewadd", 17: "ewmul", 18: "matmul"}
_KEYS = {"conv2d": (6, 7, 8, 9), "concat": (11, 10), "split": (11,), "matmul": (9,)}
"""Of each type the parameters that are its numbers: 6, 7 strides, 8 padding, 9 activation, 10 rank, 11 axis."""


def _binary(raw: bytes) -> Iterator[TermEquation]:
    for number, rule in _fields(raw):
        if number != 1 or not isinstance(rule, bytes):
            raise _Wrong("it is no collection of TASO's rules", 0)
        parts = _fields(rule)
        left = [_operator(part) for field, part in parts if field == 1 and isinstance(part, bytes)]
        right = [_operator(part) for field, part in parts if field == 2 and isinstance(part, bytes)]
        for field, part in parts:
            if field == 3 and isinstance(part, bytes):
                ends = dict(_fields(part))
                yield TermEquation(
                    _output(left, _integer(ends, 1), _integer(ends, 3)),
                    _output(right, _integer(ends, 2), _integer(ends, 4)),
                )


_Operator = tuple[str, tuple[int, ...], list[tuple[int, int]]]


def _operator(raw: bytes) -> _Operator:
    fields = _fields(raw)
    name = _TYPES.get(_integer(dict(fields), 1))
    if name is None:
        raise _Wrong(f"operators of type {_integer(dict(fields), 1)} are not known", 0)
    inputs = [dict(_fields(part)) for field, part in fields if field == 2 and isinstance(part, bytes)]
    given = [dict(_fields(part)) for field, part in fields if field == 3 and isinstance(part, bytes)]
    parameters = {_integer(parameter, 1): _integer(parameter, 2) for parameter in given}
    numbers = tuple(parameters.get(key, 0) for key in _KEYS.get(name, ()))
    return name, numbers, [(_integer(source, 1), _integer(source, 2)) for source in inputs]


def _output(operators: Sequence[_Operator], place: int, output: int) -> Term:
    """The term of an operator's output; a negative place is a variable."""
    if place < 0:
        return Term(f"input_{-place}")
    if place >= len(operators):
        raise _Wrong("a rule names an operator that it does not have", 0)
    name, numbers, inputs = operators[place]
    if any(source >= place for source, _ in inputs):
        raise _Wrong("an operator of a rule reads a later one", 0)
    whole = Term(name, numbers, tuple(_output(operators, source, number) for source, number in inputs))
    return Term(f"split_{output}", (), (whole,)) if name == "split" else whole


def _integer(fields: dict[int, int | bytes], number: int) -> int:
    encoded = fields.get(number, 0)
    if not isinstance(encoded, int):
        raise _Wrong(f"field {number} is no number", 0)
    return encoded - (1 << 64) if encoded >> 63 else encoded


def _fields(raw: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a message: numbers (wire type 0) and what has a length (2)."""
    fields: list[tuple[int, int | bytes]] = []
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        value, position = _varint(raw, position)
        if tag & 7 == 0:
            fields.append((tag >> 3, value))
        elif tag & 7 == 2 and position + value <= len(raw):
            fields.append((tag >> 3, raw[position : position + value]))
            position += value
        else:
            raise _Wrong("it is neither text nor a protocol buffer of rules", 0)
    return fields


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        if position + count >= len(raw):
            break
        byte = raw[position + count]
        value |= (byte & 127) << (7 * count)
        if byte < 128:
            return value, position + count + 1
    raise _Wrong("a number ends too early", 0)
