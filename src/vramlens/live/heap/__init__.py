"""Heap: the living objects of the interpreter, searched from the roots to every tensor."""
