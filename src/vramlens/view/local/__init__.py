"""The local page: served to one user of this machine, and how his browser gets there.

opening: how a browser is led to the page without the token in its command
peer: who is at the other end of a connection on this machine, where the system tells
server: the local page
"""
