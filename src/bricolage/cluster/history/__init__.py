"""Histories of jobs: one reader for each format."""
