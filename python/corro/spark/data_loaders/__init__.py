"""Loaders of PyTorch tensors over a reader of batches."""
