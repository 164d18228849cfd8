"""Comparing: what each way to save memory brings on the user's model."""
