"""Memory now: what the driver, PyTorch and the host say of every device at this moment."""
