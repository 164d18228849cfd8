"""Reports: every answer is a story (its words, and the document that they make) and a JSON.

document: the parts of an answer, and what goes first where there is little room.
text: a document on a screen, fitted into its lines.
table_layout: a table on a screen.
holders: who holds the bytes of a moment, as a part of a document.
holder_lines: the same on a screen.
markdown: a document for an issue.
html: a document as a page.
layout: text fitted into a width.
screen: the room that a console has.
wording: how sizes, shares, places and foreign text are written.
finding_json: a finding and a place as JSON.
progress: the bar while a file is read.
explain, diff, leaks, profile, ranks, replay, check: one folder an answer.
editor: findings on the lines that they are about, for editors and code review.
forms: the forms of an answer in a program: the text of ``print``, the HTML of a notebook.
"""
