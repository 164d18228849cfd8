"""Export: a recording in the formats of other tools.

chrome: the timeline as Chrome's trace events, for chrome://tracing
clock: times of events
csv: one row an allocation, as RFC 4180 has it: commas, a header, quotes where they are needed
curves: the allocator's counters right after each event
flamegraph: flame graph
formats: what a recording can be exported to, and what each takes
parquet: one row an allocation, in the columns of the CSV, written by DuckDB
perfetto: the timeline in Perfetto's own trace format, for ui.perfetto.dev and its trace processor
speedscope: speedscope: bytes by stack as sampled profiles, for speedscope.app
stack_bytes: bytes by stack: what a flame graph draws, outermost frame first
allocation_table: one row an allocation, with all that vramlens knows of it, as columns
tensorboard_steps: memory by step as ten scalars, beside the losses
timeline: a device's counters, spans and marks as every trace viewer draws them
tracks: spans of time put on as few lines as a timeline needs to draw them
wire: protobuf messages, field by field, and a million alike at once
"""

from vramlens.export.formats import FORMATS, Format, Written, default_name, export_recording
from vramlens.ground.callable_package import make_callable

__all__ = ["FORMATS", "Format", "Written", "default_name", "export_recording"]

make_callable(__name__)
