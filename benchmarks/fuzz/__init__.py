"""Fuzzing: `python -m benchmarks.fuzz --minutes 10` (`make fuzz MINUTES=10`).

Each campaign takes seeds in turn, in a process of its own, and goes on where the last run ended. What is wrong is cut down and kept
below `findings/` of the folder: a model, its inputs, and a script.
"""
