"""Training: one step of the user's training, run whole or in parts, and undone when it fails."""
