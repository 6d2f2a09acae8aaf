"""Schedules: methods against bounds, and what they say against what was measured."""
