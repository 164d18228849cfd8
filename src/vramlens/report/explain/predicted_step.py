"""What comes next after a failure whose need is not known: the same script predicted, whole."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from vramlens.cards.known_cards import DEFAULT_GPU, card_of_device
from vramlens.ground.place import base_name
from vramlens.ground.vocabulary import Cause
from vramlens.report.document import Command

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation
    from vramlens.trace import Meta

_INTERPRETER = re.compile(r"python[\d.]*(?:\.exe)?$", re.IGNORECASE)
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_KERNEL = re.compile(r"kernel_launcher\.py$|^__main__\.py$")
"""A notebook's kernel, whose program is in no script; and what ``python -m`` runs."""


def step_to_predict(explanation: Explanation) -> Command | None:
    """The prediction of the whole run, where what the failed step needs is a range or unknown; None
    where that is known, other advice holds, or no script is.
    """
    oom, meta = explanation.failure, explanation.recording.meta
    if oom is None or meta.is_prediction or explanation.peak is None:
        return None
    if oom.cause in (Cause.LEAK, Cause.FRAGMENTATION) or oom.need is None:
        return None
    script = script_words(meta)
    if oom.need.peak_reserved_bytes is not None or not script:
        return None
    options = f"{_gpu(meta)}{_ranks(meta)}"
    # What follows -- is the script's own, whatever options predict has.
    has_options = any(word.startswith("-") for word in script[1:])
    words = [script[0], *(["--"] if has_options else []), *script[1:]]
    return Command(
        "predict the peak of the whole run, without a GPU",
        (f"vramlens predict{options} {shlex.join(words)}",),
    )


def script_words(meta: Meta) -> list[str]:
    """The recorded program's script and its arguments; empty where it is no Python script, or not
    known.
    """
    words = list(meta.command)
    if words and _INTERPRETER.match(base_name(words[0])):
        words = words[1:]
        while words and words[0].startswith("-"):
            if words[0][:2] in ("-c", "-m"):
                return []
            words = words[2 if words[0] in _WITH_VALUE else 1 :]
    if not words or not words[0].endswith(".py") or words[0].startswith("-"):
        return []
    return [] if _KERNEL.search(base_name(words[0])) else words


def _gpu(meta: Meta) -> str:
    card = card_of_device(meta.device_name or "")
    return "" if card in (None, DEFAULT_GPU) else f" --gpu {card}"


def _ranks(meta: Meta) -> str:
    if (meta.world_size or 1) < 2:
        return ""
    rank = f" --rank {meta.rank}" if meta.rank else ""
    return f" --world-size {meta.world_size}{rank}"
