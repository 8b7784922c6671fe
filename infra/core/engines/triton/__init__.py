"""Triton Inference Server: the model repository, and what its server would refuse to load."""
