"""Which devices run which part of a training step, and in which order: plans as data, judged by the simulator."""
