"""The user's manual: what is generated of it, what its examples print, how its sentences read."""
