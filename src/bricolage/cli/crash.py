"""After a fault of our own: a folder with the trace, the command, the versions and the plan."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import re
import shlex
import sys
import tempfile
import time
import traceback
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.base.cache import cache_directory
from bricolage.base.codec import encode

if TYPE_CHECKING:
    from bricolage.api.result_types import Plan

_last_plan: Plan | None = None


def remember(plan: Plan) -> None:
    """The plan at work, for a later fault."""
    global _last_plan
    _last_plan = plan


def record(error: BaseException) -> Path | None:
    """Writes the folder and returns it; None where no place can be written."""
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}"
    for root in (cache_directory(), Path(tempfile.gettempdir())):
        try:
            root.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
            (folder / "traceback.txt").write_text("".join(traceback.format_exception(error)), encoding="utf-8")
            (folder / "command.txt").write_text(shlex.join(sys.argv) + "\n", encoding="utf-8")
            (folder / "versions.txt").write_text(installed_versions(), encoding="utf-8")
            plan = _plan_text()
            if plan is not None:
                (folder / "plan.json").write_text(plan, encoding="utf-8")
        except OSError:
            continue
        return folder
    return None


def installed_versions() -> str:
    """Python, the system, and every package that bricolage may use, one a line."""
    lines = [f"python {platform.python_version()}", f"system {platform.platform()}"]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        names = ["bricolage", *(_package(text) for text in importlib.metadata.requires("bricolage") or ())]
        for name in dict.fromkeys(names):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                lines.append(f"{name} {importlib.metadata.version(name)}")
    return "\n".join(lines) + "\n"


def short_line(error: BaseException) -> str:
    """The first line of a message, short enough for a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(".") if lines else "no message"


def _package(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _plan_text() -> str | None:
    """The plan at work, or that of an artifact on the command line."""
    if _last_plan is not None:
        return json.dumps(encode(_last_plan), indent=1)
    for word in sys.argv[1:]:
        with contextlib.suppress(OSError, zipfile.BadZipFile, KeyError, ValueError), zipfile.ZipFile(word) as archive:
            return archive.read("plan.json").decode()
    return None
