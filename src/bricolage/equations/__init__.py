"""Terms over a small vocabulary of operators, and what they are worth: numbers and shapes, no graphs."""
