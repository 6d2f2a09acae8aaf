"""Searches over configurations, by measurement on this machine."""
