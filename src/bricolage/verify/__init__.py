"""The float64 reference, error metrics, and inputs that make a comparison meaningful."""
