"""What rules ask of a graph beyond their pattern: factors, slices, where transposes stand."""
