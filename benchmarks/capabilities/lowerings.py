"""Which capability tables are older than what they rest on: our own lowerings of operators, by digests that stand in the table.

A digest is of a file's tokens without comments, docstrings and layout: a sentence or a line break makes no table older.
"""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import bricolage
from bricolage.backends.capabilities import CapabilityTable

_PACKAGE = Path(bricolage.__file__).parent
_SHARED = ("lowering/*.py", "lowering/operators/**/*.py")
RESTS_ON: Mapping[str, tuple[str, ...]] = {
    "native": ("backends/native/ir/**/*.py",),
    "torch": (*_SHARED, "lowering/torch/*.py"),
    "inductor": (*_SHARED, "lowering/torch/*.py"),
    "xla": (*_SHARED, "lowering/jax/*.py"),
    "tvm": ("backends/tvm_rewrite.py",),
    "iree": ("backends/iree_compile.py",),
}
"""By backend, the files below the package that say what it is given for an operator. Other backends read the operators themselves:
their tables hold for their version."""
_LAYOUT = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)
_HEX = 12


def digests(backend: str, package: Path = _PACKAGE) -> dict[str, str]:
    """Each file that the backend's table rests on, relative to the package, with its digest now."""
    paths = sorted({path for pattern in RESTS_ON.get(backend, ()) for path in package.glob(pattern)})
    return {str(path.relative_to(package)): digest(path.read_text(encoding="utf-8")) for path in paths}


def digest(source: str) -> str:
    """Of a file of Python: what it says, whatever its comments, docstrings and line breaks."""
    words = "".join(_words(list(tokenize.generate_tokens(io.StringIO(source).readline))))
    words = re.sub(r"\s+", "", words).replace("{{", "{").replace("}}", "}")  # Pythons divide f-strings differently
    return hashlib.sha256(words.encode()).hexdigest()[:_HEX]


def _words(tokens: Sequence[tokenize.TokenInfo]) -> Iterator[str]:
    said = [token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING)]
    for before, token, after in zip([None, *said[:-1]], said, [*said[1:], None], strict=True):
        begins = before is None or before.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        ends = after is None or after.type in (tokenize.NEWLINE, tokenize.ENDMARKER)
        closes = token.string == "," and after is not None and after.string in ")]}"
        if token.type == tokenize.INDENT:
            yield "⟨"
        elif token.type == tokenize.DEDENT:
            yield "⟩"
        elif token.type not in _LAYOUT and not closes and not (token.type == tokenize.STRING and begins and ends):
            yield token.string


def changed(found: CapabilityTable, package: Path = _PACKAGE) -> list[str]:
    """The files that a table rests on and that are not as they were when it was made, or came, or went."""
    now = digests(found.backend, package)
    return sorted(name for name in {*now, *found.lowerings} if now.get(name) != found.lowerings.get(name))
