"""Budget: whether a run stays within its limits."""
