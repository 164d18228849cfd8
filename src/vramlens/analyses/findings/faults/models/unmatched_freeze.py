"""A loop that freezes parameters by their names, where no name fits: all of the model is trained."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.parameter_uses import training_rows
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import ParameterUse, TensorKind
from vramlens.units import counted, format_size

_FREEZES = re.compile(r"^(\w+)\.requires_grad(?: = False|_\(False\))$")
"""All of a line: capture/failure_facts/freezing_lines.py."""
_LEAST_SHARE = 0.1
"""Of what is in use."""
_FEWEST_PARAMETERS = 4


@after_failure
def unmatched_freeze(scene: Scene) -> Iterator[Finding]:
    """The gradients, states and activations of a model of which a line was to freeze a part."""
    names, alive = scene.view.names, scene.advice_rows
    parameters = np.intersect1d(alive, names.of_kind(TensorKind.PARAMETER))
    use = names.use[parameters]
    line = _freezing_line(scene)
    is_trained = np.isin(use, (ParameterUse.STEPPED, ParameterUse.UNSTEPPED))
    if line is None or not is_trained.all() or len(parameters) < _FEWEST_PARAMETERS:
        return
    rows = np.union1d(training_rows(names, parameters, alive), scene.computed_rows)
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    place, test = line
    count = counted(len(parameters), "parameter")
    yield Finding(
        id="unmatched_freeze",
        verdict=Verdict.LIKELY,
        title=f"{scene.source_of(place)} freezes nothing: all {count} are trained;"
        f" {scene.part_of_heap(size_bytes)} are their gradients, states and activations",
        bytes=size_bytes,
        place=place,
        evidence=("no name passes the test above it",),
        fix=f"make `{test.rstrip(':')}` fit the parameters' names, or call named_parameters() of the module that its"
        f" names are relative to: {names.name(int(parameters[0]))} is one of the parameters (up to"
        f" {format_size(size_bytes)} less, depending on how much is frozen then)",
        extent=scene.extent(rows),
    )


def _freezing_line(scene: Scene) -> tuple[Place, str] | None:
    """The line that freezes one parameter, with the nearest test; None where the recording has none."""
    failure = scene.ending_failure
    source = {} if failure is None else failure.source
    for (file, number), text in source.items():
        if not _FREEZES.match(text):
            continue
        tests = [
            (abs(other - number), test)
            for (other_file, other), test in source.items()
            if other_file == file and test.startswith("if ")
        ]
        if tests:
            return Place(file, number, function=""), min(tests)[1]
    return None
