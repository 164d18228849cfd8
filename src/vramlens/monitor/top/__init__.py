"""Top: the screen of ``vramlens top``."""
