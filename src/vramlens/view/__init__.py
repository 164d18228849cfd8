"""The picture of a recording: the page's data, the one-file page, the local server.

columns: columns of numbers as byte planes.
comparison: the recordings of a page together: one of two, and what differs between them.
file_opener: the page that opens files, by a reader of its own.
page: the data of recordings, and one file that shows them with nothing loaded from anywhere.
page_verdict: the words of an explanation as data.
sources: source lines around the user's lines.
texts: words in a page: texts stored once, findings and places as data.
track: one track of a page: a device of a recording, as columns and tables.
timeline: what lies under or over the picture, in time.
local: the local page, and how a browser gets there.
"""

from vramlens.ground.callable_package import make_callable

make_callable(__name__)
