"""The schema of the answers as data: what ``--json`` prints, key by key as docs/json.md fixes
it.
"""

SCHEMA = "vramlens/1"
"""What every such object says under ``schema``; another number once a key changes its meaning or
goes.
"""
