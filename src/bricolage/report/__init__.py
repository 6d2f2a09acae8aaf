"""Tables, explanations and self-contained HTML."""
