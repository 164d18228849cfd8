"""The Markdown: the same content, and nothing in it that the input could format, link or
mention.
"""

import re
from dataclasses import replace

import pytest

from support.documents import markdown
from support.samples import EVERY, error_text, failed, finding, hostile, run
from vramlens.foreign_text import markdown as escaped
from vramlens.foreign_text import markdown_code as code
from vramlens.report.explain.holder_tables import GROUPINGS


@pytest.mark.parametrize("by", GROUPINGS)
@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_tables_have_as_many_cells_in_every_row(make, by):
    cells = None
    for line in markdown(make(), by=by).splitlines():
        if not line.startswith("|"):
            cells = None
            continue
        found = len(re.findall(r"(?<!\\)\|", line))
        cells = cells or found
        assert found == cells, line


def test_holds_all_that_the_text_cuts():
    text = markdown(failed())
    for number in range(6):
        assert f"finding {number}:" in text.lower()
    assert "600.00 MiB" in text
    assert "The events before number 12,000" in text
    assert "… and 12 more" in text
    assert " more, " not in markdown(failed(), top=100)


def test_begins_with_the_answer_and_ends_with_a_command():
    text = markdown(run())
    assert text.startswith(
        "**Peak 448.00 MiB requested in step 3 (peak allocated: 449.00 MiB or more, peak reserved: 2.00 GiB)"
    )
    assert text.endswith("```sh\nvramlens view run.pickle\n```\n")


def test_an_error_text_has_its_ledger():
    assert "### Where the GPU's 105.00 GiB are" in markdown(error_text())


def test_escapes():
    assert escaped("a_b *c* <d> [e](f) | #1") == r"a_b \*c\* \<d\> \[e\](f) \| \#1"
    assert escaped("_a_ b__c __d__ é_é _") == r"\_a\_ b__c \_\_d\_\_ é_é \_"
    assert escaped("ask @someone & co") == "ask &#64;someone &amp; co"
    assert escaped("call `x_y` now") == "call `x_y` now"
    assert escaped("one ` alone_") == r"one \` alone\_"
    assert code("a`b|c") == r"``a`b\|c``"
    assert code("`") == "`` ` ``"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("try A_CONF=x_y:True,z:1: up to 5 MiB", "try `A_CONF=x_y:True,z:1`: up to 5 MiB"),
        ("run with A_CONF=x_y:True and again.", "run with `A_CONF=x_y:True` and again."),
        ("pin_memory=False or fewer", "`pin_memory=False` or fewer"),
        (
            "torch.load(..., map_location='cpu', mmap=True), or",
            "`torch.load(..., map_location='cpu', mmap=True)`, or",
        ),
        ("call torch.cuda.empty_cache() once", "call `torch.cuda.empty_cache()` once"),
        ("empty_cache() cannot", "`empty_cache()` cannot"),
        ("given to torch.cuda.set_fraction: 3 GiB", "given to `torch.cuda.set_fraction`: 3 GiB"),
        ("docker run --shm-size=16g, or --log", "docker run `--shm-size=16g`, or `--log`"),
        ("a step (in all) of file(s)", "a step (in all) of file(s)"),
        ("in a.py:3 in f", "in a.py:3 in f"),
    ],
)
def test_what_is_to_be_typed_is_code(text, shown):
    assert escaped(text) == shown


def test_inferred_bytes_are_explained():
    text = markdown(run())
    assert "| size | share | count | backward | line | mostly |" in text
    assert text.count("\n\nbackward: requested by the backward pass of that line\n\n") == 1


def test_a_next_step_without_a_command_is_a_sentence():
    answer = replace(error_text(), findings=(replace(finding(), id="not_memory"),))
    assert markdown(answer).endswith("no memory ran out, so there is nothing to record.\n")


def test_hostile_names_mention_and_format_nothing():
    text, _, command = markdown(hostile()).partition("```sh")
    assert "<b>" in command  # as it is: it is to be pasted
    outside_code = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)
    assert not re.search(
        r"(?<!\\)[<>\[\]|]",
        re.sub(r"^\|.*\|$", "", outside_code, flags=re.MULTILINE).replace("###", ""),
    )
    assert "@" not in outside_code
    assert "\x1b" not in text
