"""Independent models trained in parallel, and their joint predictions: ``bimetal ensemble``, docs/tuning.md."""
