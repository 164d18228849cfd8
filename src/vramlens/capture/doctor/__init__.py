"""Doctor: what on this machine helps or hinders memory debugging."""
