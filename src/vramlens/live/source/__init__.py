"""Source: what the user's code says of a name: where it is filled, bounded and emptied."""
