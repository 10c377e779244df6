"""What the PyTorch and the TensorFlow form share: the world of ranks, and the engine that runs collectives."""
