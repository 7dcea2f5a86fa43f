"""Archives of ``torch.export``, read without unpickling anything, and written."""
