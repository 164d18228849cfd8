"""Failure: why a recorded request failed, and what surrounded the allocator then."""
