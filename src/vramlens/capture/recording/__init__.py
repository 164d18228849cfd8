"""Recording: what is kept of a running program, and the file that it is written to."""
