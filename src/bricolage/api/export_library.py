"""A plan as a C library."""

from bricolage.runtime.c_library.export_model import Exported, export_model

__all__ = ["Exported", "export_model"]
