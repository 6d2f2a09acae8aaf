"""Clusters: policies beside published figures, and the replay beside machines."""
