"""The stages of a decision, in the order of `STAGES`."""
