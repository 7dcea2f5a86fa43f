"""Model code of our own to capture samples from: plain PyTorch, meant to be read."""
