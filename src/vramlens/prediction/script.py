"""A script that is predicted: run as Python would run it, with shapes on the device."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from vramlens.capture.triggers.user_program import execute_script
from vramlens.cards.known_cards import card_named
from vramlens.errors import InputError, NoProgram
from vramlens.prediction.predicted_peak import Prediction
from vramlens.prediction.predicted_run import Gathered, PredictedRun, Question, answer
from vramlens.prediction.refusals import Refused, patience, put_refusals
from vramlens.prediction.script_failure import exit_line, failure_line

PATIENCE_S = 1800
"""After so many seconds a script is taken for one that never ends."""


class NotPredicted(InputError):
    """A program that cannot be predicted; the text says why."""


def predict_script(
    path: str,
    arguments: Sequence[str],
    question: Question,
    most_steps: int | None,
    progress: Callable[[int], None] | None = None,
    patience_s: int = PATIENCE_S,
) -> Prediction:
    """The prediction of a script; what it prints goes to standard error. It changes PyTorch in this
    process for good.

    Raises:
        NotPredicted: the script failed, or asked for what has no shape; the text says where.
        NoProgram: there is no such script.
    """
    gathered = run_script(path, arguments, question, most_steps, progress, patience_s=patience_s)
    return answer(gathered, question)


def run_script(
    path: str,
    arguments: Sequence[str],
    question: Question,
    most_steps: int | None,
    progress: Callable[[int], None] | None = None,
    *,
    patience_s: int = PATIENCE_S,
    prepare: Callable[[], None] | None = None,
) -> Gathered:
    """What a script asks of the allocator.

    Args:
        prepare: called before the script, with PyTorch as it will find it.

    Raises:
        NotPredicted: as ``predict_script``.
        NoProgram: there is no such script.
    """
    card = card_named(question.gpu)
    began = time.perf_counter()
    cards = question.cards or (card.total_bytes,)
    run = PredictedRun(card, most_steps, question.place, cards)
    put_refusals()
    if prepare is not None:
        prepare()
    with _prints_aside(), run.going(progress):
        try:
            with patience(patience_s):
                execute_script(path, arguments)
        except SystemExit as ending:
            if ending.code not in (None, 0):
                raise NotPredicted(exit_line(path, ending, run.values.asked)) from None
        except Refused as error:
            raise NotPredicted(f"{path}: {error}") from None
        except (NoProgram, KeyboardInterrupt):
            raise
        except Exception as error:
            raise NotPredicted(failure_line(path, error, run.values.asked)) from error
    gathered = run.gathered(began)
    if not gathered.log.sizes:
        raise NotPredicted(
            f"{path}: nothing moved to the GPU, so there is nothing to predict: the script has to"
            " use the device 'cuda' (no GPU is needed on this machine)"
        )
    return gathered


@contextlib.contextmanager
def _prints_aside() -> Iterator[None]:
    """What the script prints goes to standard error: standard output is for the answer."""
    terminal = sys.stdout
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = terminal
