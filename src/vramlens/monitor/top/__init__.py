"""Top: the screen of ``vramlens top``.

watching: look after look, with alerts and sinks.
history: the last hour of each GPU and process, and charts of it.
lines: the machine as plain lines.
screen_lines: as styled lines.
top_screen: the terminal and its keys.
"""
