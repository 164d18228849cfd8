"""Export: a recording in the formats of other tools."""

from vramlens.export.formats import FORMATS, Format, Written, default_name, export_recording

__all__ = ["FORMATS", "Format", "Written", "default_name", "export_recording"]
