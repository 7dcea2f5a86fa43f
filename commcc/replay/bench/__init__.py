"""Graphs timed beside each other, and the prices of ops and collectives measured."""
