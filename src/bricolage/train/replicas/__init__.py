"""Replicas of one model that train on parts of the data, kept in step by one of several methods."""
