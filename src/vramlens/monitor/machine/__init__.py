"""Machine: every GPU and the processes on it, now."""
