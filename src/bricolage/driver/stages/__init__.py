"""The stages of a decision; `driver/decide.py` has their order."""
