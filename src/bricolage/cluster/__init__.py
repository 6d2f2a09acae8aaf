"""Clusters: which job gets which devices and when; policies compared by replaying a history of jobs."""
