"""Graph substitutions: rules that say what may replace what, and the driver that applies them."""
