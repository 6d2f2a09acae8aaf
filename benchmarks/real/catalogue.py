"""Which trained networks are tried: those that packages of the Python registry ship, by what they take."""

from __future__ import annotations

from benchmarks.real.packages import Network, Unavailable
from benchmarks.real.pictures import PICTURES
from benchmarks.real.sounds import SOUNDS
from benchmarks.real.tables import TABLES
from benchmarks.real.texts import TEXTS

__all__ = ["NETWORKS", "Network", "Unavailable"]

NETWORKS: tuple[Network, ...] = (*PICTURES, *SOUNDS, *TEXTS, *TABLES)
