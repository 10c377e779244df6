"""Independent models trained in parallel, and what they predict together: ``bimetal ensemble``, docs/tuning.md."""
