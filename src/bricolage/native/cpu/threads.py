"""C of the threads that run a region: a team that shares out pieces of work, waits shortly, and then sleeps.

A loop is cut into pieces, and each thread has its own share of them: it takes them from the front, and when it has none left
it takes the last ones of others. So a thread that has lost its core, or has not woken up yet, holds up others only with the piece
that it is at. Threads meet where all *pieces* are done, not where all threads have arrived; one that comes late finds nothing
left, and goes on to where the others are. Who takes a piece changes nothing in it: pieces are the same on each call, and so
are the bits.

The regions of a process share a team. With one each, the helper that still spins for the last region would hold the processor
that the helper of the next one needs. Callers from several threads are served in the order in which they came; the work of the
next one is posted by the one that ends, so that helpers are at it while its caller wakes up.
"""

from __future__ import annotations

from bricolage.native.c import define, read_header

RING = 8
"""Loops that threads may be apart: those between two meetings."""

MEETING_MS = 0.4e-3
"""That threads take to meet while none of them sleeps; measured on two cores of several processors, 0.3 to 0.9 µs."""

THREADS = f"{define(RING=RING)}\n{read_header('threads')}"
"""C of the team, for one thread and more."""
