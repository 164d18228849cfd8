"""Memory: who holds it at one moment, over time, and what of it is free but unusable."""
