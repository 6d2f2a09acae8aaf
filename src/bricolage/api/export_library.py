"""A plan as a C library."""

from pathlib import Path

from bricolage.api.optimize_target import read_described_target
from bricolage.plan.pack import PackTarget
from bricolage.runtime.c_library.export_model import Exported, export_model
from bricolage.runtime.c_library.targets import TARGETS

__all__ = ["Exported", "export_model", "find_export_target"]


def find_export_target(word: str) -> str | PackTarget:
    """What `--target` names: a kind of processor, or the device that a file describes.

    Raises:
        BadTargets, BadOption: as `read_described_target`.
    """
    return read_described_target(Path(word)) if word not in TARGETS and Path(word).is_file() else word
