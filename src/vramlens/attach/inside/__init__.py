"""What runs in the process that was attached to: the standard library, ``capture`` and ``live``."""
