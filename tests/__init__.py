"""Tests. Their arrays are small, several processes run them at once, and other processes of theirs compute beside them: threads of
BLAS and OpenMP that watch for work would take most of the processor's time. They are set before numpy or torch are loaded; what
the product starts sets its own numbers."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
