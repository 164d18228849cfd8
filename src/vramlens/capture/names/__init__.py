"""Names: which tensor and which module each block of memory belongs to."""
