"""Training: predictions, plans for several devices, models trained as one, replicas."""
