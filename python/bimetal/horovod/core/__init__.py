"""Shared by the PyTorch and the TensorFlow form: the world of ranks, and the engine that runs collectives."""
