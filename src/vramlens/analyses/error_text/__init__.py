"""Error text: what the message of an out-of-memory error proves by itself."""
