"""In the program that is watched: recording its GPU memory. Standard library and torch only,
torch imported late.
"""
