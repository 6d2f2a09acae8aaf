"""What a training step costs, and what changes of it would cost, before they are made."""
