"""A communication compiler for PyTorch training graphs."""

__version__ = "0.1.0"
