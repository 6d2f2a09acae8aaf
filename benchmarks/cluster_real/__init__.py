"""Real jobs and the replay of the same submissions."""
