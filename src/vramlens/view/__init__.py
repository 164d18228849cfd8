"""The picture of a recording: the page's data, the one-file page, the local server.

bands: the regions that a program marked, as spans under the picture
collective_calls: collectives of a rank
columns: columns of numbers as byte planes
comparison: what differs between the ranks of a page, as ``vramlens ranks`` says it
findings: a finding in a page, whoever found it
joined: a recording and a profiler's trace of the same run as one
kernel_bands: kernels of a profiler's trace as one band under its regions
opening: how a browser is led to the page without the token in its command
page: the data of recordings, and one file that shows them with nothing loaded from anywhere
peer: who is at the other end of a connection on this machine, where the system tells
profile_verdict: the verdict of a page about a profiler's trace
marked_regions: regions of a recording
server: the local page
shown_page: a page as a value: shown in a notebook, written to a file
sources: source lines around the user's lines
texts: texts in a page: each stored once, as one line that shows what it holds
track: one track of a page: a device of a recording, as columns and tables
page_verdict: the words of an explanation as data
tunnel: how a page on a remote machine is reached
what_if_lines: replayed settings as lines over the recorded ones
"""

from vramlens.ground.callable_package import make_callable

make_callable(__name__)
