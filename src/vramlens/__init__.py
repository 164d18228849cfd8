"""vramlens: where the memory of a GPU is, why it ran out, what to change."""

from vramlens.errors import InputError, NotARecording, UnsafeInput, UsageError, VramlensError

__version__ = "0.1.0"
