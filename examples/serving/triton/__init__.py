"""An artifact as a model of Triton's Python backend."""
