"""The picture of a recording: the page's data, the one-file page, the local server."""
