"""Schedules of pipelines as data: which pass of which micro-batch each device runs, one after another."""
