"""Real jobs beside the replay of the same submissions."""
