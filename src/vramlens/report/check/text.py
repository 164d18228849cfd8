"""A check as text for a terminal and as Markdown: the answer first, then each limit, then what
broke it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from vramlens.analyses.budget.limit_result import shown
from vramlens.foreign_text import markdown as escaped
from vramlens.foreign_text import markdown_block as fenced
from vramlens.report.diff.markdown import table
from vramlens.report.layout import Layout, left, right
from vramlens.report.screen import layout_of, next_lines, show
from vramlens.report.wording import quoted, sentence, visible
from vramlens.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.budget.budget import Check
    from vramlens.analyses.budget.limit_result import Result
    from vramlens.analyses.finding import Finding

_TITLE = "bold"
_NARROWEST_NAME = 12
_OUTCOME = 8 + len("over (vram.toml:44)")  # and the space between columns


def render_check(check: Check, console: Console) -> None:
    """Prints a check."""
    layout = layout_of(console)
    show(console, _lines(check, layout))


def headline(check: Check) -> str:
    """The answer in one sentence."""
    if check.passed:
        tightest = _tightest(check)
        nearest = (
            f"; {visible(tightest.limit.scope)} is the nearest: {_room(tightest)}"
            if tightest
            else ""
        )
        return f"Within budget: {counted(len(check.results), 'limit')} of {len(check.results):,} hold{nearest}."
    return (
        f"{'Over budget' if _over(check) else 'Cannot tell'}: {visible(check.findings[0].title)}."
    )


def _over(check: Check) -> bool:
    return any(result.passed is False for result in check.results)


def _room(result: Result) -> str:
    """What is left of a limit that holds, and of how much: two sizes that round to the same say
    nothing.
    """
    room = shown(result.limit.kind, max(0, result.limit.value - (result.value or 0)))
    return f"{room} of room below its {shown(result.limit.kind, result.limit.value)}"


def _tightest(check: Check) -> Result | None:
    """The limit that has the smallest share of itself left."""
    used = [
        (result.value / result.limit.value, result)
        for result in check.results
        if result.limit.value and result.value
    ]
    return max(used, key=lambda pair: pair[0])[1] if used else None


def _lines(check: Check, layout: Layout) -> Iterator[Text]:
    yield from (Text(line, style=_TITLE) for line in layout.wrap(headline(check)))
    for finding in check.findings[:1]:
        yield from _evidence(finding, layout)
    yield Text("")
    yield from _table(check, layout)
    for finding in check.findings[1:]:
        yield Text("")
        yield from (Text(line) for line in layout.wrap(sentence(visible(finding.title))))
        yield from _evidence(finding, layout)
    yield Text("")
    why, command = next_step(check)
    yield from next_lines(why, command, layout)


def _evidence(finding: Finding, layout: Layout) -> Iterator[Text]:
    for words in finding.evidence:
        yield from (Text(line) for line in layout.wrap(visible(words), first="  ", rest="    "))
    if finding.fix:
        yield from (
            Text(line) for line in layout.wrap(visible(finding.fix), first="  Do: ", rest="      ")
        )


def _rows(check: Check) -> list[tuple[str, str, str, str]]:
    rows = []
    for result in check.results:
        limit = shown(result.limit.kind, result.limit.value)
        value = shown(result.limit.kind, result.value) if result.value is not None else "not known"
        outcome = {True: "holds", False: "over", None: "cannot tell"}[result.passed]
        if result.why:
            outcome = f"{outcome}: {visible(result.why)}"
        where = (
            f"{visible(check.budget)}:{result.limit.line}"
            if result.limit.line and not result.passed
            else ""
        )
        rows.append(
            (
                visible(result.limit.scope),
                limit,
                value,
                f"{outcome} ({where})" if where else outcome,
            )
        )
    return rows


def _table(check: Check, layout: Layout) -> Iterator[Text]:
    rows = _rows(check)
    limits = right(["limit", *(row[1] for row in rows)])
    values = right(["value", *(row[2] for row in rows)])
    room = max(_NARROWEST_NAME, layout.width - len(limits[0]) - len(values[0]) - _OUTCOME)
    names = left(["", *(layout.from_middle(row[0], room) for row in rows)])
    for name, limit, value, outcome in zip(
        names, limits, values, ["", *(row[3] for row in rows)], strict=True
    ):
        start = f"  {name}  {limit}  {value}"
        if not outcome:
            yield Text(start, style="dim")
            continue
        yield from (Text(line) for line in layout.wrap(outcome, first=f"{start}  ", rest="      "))


def next_step(check: Check) -> tuple[str, str]:
    """What to do with the answer, and the command."""
    source, budget = quoted(check.source), quoted(check.budget)
    if check.passed:
        return (
            "keep it so in every pull request",
            f"vramlens check {source} --budget {budget} --format github",
        )
    if not _over(check):
        return "record what the limits need", "vramlens run -o run.vram YOUR_SCRIPT.py"
    if any(
        result.limit.path[0] == "out_of_memory" and result.why and not result.passed
        for result in check.results
    ):
        return "what failed, and why", f"vramlens explain {source}"
    if any(
        result.limit.path[0] == "growth_per_step" and result.passed is False
        for result in check.results
    ):
        return "what keeps the memory of each step", f"vramlens leaks {source}"
    return "if that is wanted, raise the budget, and have the change reviewed", (
        f"vramlens check {source} --budget {budget} --update"
    )


def check_to_markdown(check: Check) -> str:
    """The check as GitHub Markdown: a step summary, or a comment."""
    mark = "✅" if check.passed else "❌"
    blocks = [
        f"{mark} **{escaped(headline(check))}**",
        table(("", "limit", "value", ""), _rows(check), "lrrl"),
    ]
    for finding in check.findings:
        words = [escaped(visible(text)) for text in finding.evidence]
        if finding.fix:
            words.append(f"Do: {escaped(visible(finding.fix))}")
        if words:
            blocks.append(f"**{escaped(sentence(visible(finding.title)))}**")
            blocks.append("\n".join(f"- {one}" for one in words))
    why, command = next_step(check)
    blocks += [f"**Next**, {escaped(why)}:", fenced((command,))]
    return "\n\n".join(blocks) + "\n"
