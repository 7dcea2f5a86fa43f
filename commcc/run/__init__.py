"""Runs of passes: pipelines and their written forms, plan files, provenance, sweeps."""
