"""Nothing is sent anywhere: libraries that report their use over the network are told not to before they are loaded.

Three of those that bricolage loads do: ONNX Runtime from 1.30 or so on (its `Privacy.md`; the official wheels collect and upload
unless an environment variable stands when it is loaded), Ray (likewise, "usage stats"), and OpenVINO's conversion tools, through a
package of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

VARIABLES: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1", "RAY_USAGE_STATS_ENABLED": "0"}
"""Environment variables that libraries read when they are loaded, here and in worker processes."""
_PACKAGES = ("openvino_telemetry",)
"""Packages that send. Those who import them take a failure to do so for "not installed"."""


def disable() -> None:
    """Switches telemetry off in this process and in those that it starts. To be called before a framework is imported.

    Where the caller has imported ONNX Runtime before, what it set up then stays: the variable comes too late, and what
    is left to do is its own switch (see `bricolage.verify.unoptimised.load_onnxruntime`).
    """
    os.environ.update(VARIABLES)
    for name in _PACKAGES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
