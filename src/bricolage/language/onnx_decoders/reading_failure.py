"""Why a graph is not read as a decoder."""

from __future__ import annotations


class NotUnderstood(Exception):
    """A part of the graph computes something that no description has; the message says which."""
