"""`simulate_devices`: where the sub-graphs of a plan would run on devices that a file describes, and how long that would take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bricolage.device.description import read_devices
from bricolage.driver.simulated_devices import Simulated, predict_on_devices
from bricolage.driver.sub_graphs import divide


def simulate_devices(path: str | Path, devices: str | Path, inputs: Mapping[str, Any] | None = None) -> Simulated:
    """What each method makes of an artifact's sub-graphs on described devices.

    Args:
        path: of the artifact.
        devices: the file that describes them (see `device.description`).
        inputs: by name; they choose the bucket. Without them it is the first one, with values by chance.

    Raises:
        MissingFile, BadDevices: no file, or it describes no devices, or none that runs some sub-graph.
        MissingFile, BadArtifact, ... UnsupportedType: as `divide`.
    """
    described = read_devices(Path(devices))
    return predict_on_devices(divide(path, inputs), described, devices)
