"""Process: vramlens as a guest in the user's process: threads, sockets and looks that disturb
nothing.
"""
