"""Planning: which blocks to recompute, and how to place a model on several GPUs."""
