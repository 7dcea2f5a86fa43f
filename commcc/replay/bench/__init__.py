"""Graphs timed next to each other, and the prices of ops and collectives measured."""
