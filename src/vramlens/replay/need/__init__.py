"""Need: what a failed step would have needed, and what would have carried it."""
