"""What a graph takes: prices of ops and collectives, the simulated step, predictions."""
