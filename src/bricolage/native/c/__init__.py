"""C that depends on no region, as headers that a C compiler checks by themselves. What generates a library writes them into it, so
that its source is one text."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
_INCLUDED = re.compile(r'^#include "(\w+)\.h"$', re.MULTILINE)


@cache
def read_header(name: str) -> str:
    """The text of a header, with those that it includes from this folder."""
    text = (FOLDER / f"{name}.h").read_text(encoding="utf-8").strip()
    return _INCLUDED.sub(lambda include: read_header(include[1]), text)


def define(**values: object) -> str:
    """Macros that a header expects."""
    return "\n".join(f"#define {name} {value}".rstrip() for name, value in values.items())
