"""Performance models: what is predicted before, or instead of, being measured."""
