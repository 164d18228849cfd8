"""Budget files: what they say, errors with their line and key, and updates that keep what people
wrote.
"""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramlens.analyses.budget.budget_file import (
    COUNT,
    SHARE,
    SIZE,
    WRITTEN_STEP_BYTES,
    new_budget,
    read_budget,
    update_budget,
    written_size,
)
from vramlens.analyses.finding import Place
from vramlens.errors import InputError
from vramlens.units import parse_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLE = """\
# The budget of the nightly run.
[budget]
peak_allocated = "20 GiB"   # an A10G has 24
growth_per_step = "1 MiB"
alloc_retries = 0
fragmentation = 0.2

[budget.module."model.layers"]
peak = "8 GiB"  # half of all

[other]
tool = "of somebody else"
"""


def read(text: str):
    return read_budget(text.encode(), "vram.toml")


def test_says_what_it_says():
    budget = read(EXAMPLE)
    assert [(limit.scope, limit.kind, limit.value, limit.line) for limit in budget.limits] == [
        ("peak_allocated", SIZE, 20 << 30, 3),
        ("growth_per_step", SIZE, 1 << 20, 4),
        ("alloc_retries", COUNT, 0, 5),
        ("fragmentation", SHARE, 0.2, 6),
        ('module "model.layers" peak', SIZE, 8 << 30, 9),
    ]
    assert budget.tolerance == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('peak_reserved = "80 GB"', 80 * 10**9),
        ("peak_reserved = 1_000", 1000),
        ("peak_reserved = 0x10", 16),
        ('fragmentation = "12.5%"', 0.125),
        ("fragmentation = 1", 1),
        ('line."train.py:44".peak = "1 MiB"', 1 << 20),
        ('category = { activations = { peak = "1 KiB" } }', 1024),
    ],
)
def test_values(text, value):
    (limit,) = read(f"[budget]\n{text}\n").limits
    assert limit.value == value
    assert limit.line == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "vram.toml: has no [budget] table (it has nothing)"),
        ("[limits]\n", "vram.toml: has no [budget] table (it has [limits])"),
        ("budget = 3\n", "vram.toml: has no [budget] table (it has [budget])"),
        ("[budget\n", "vram.toml: is not TOML: "),
        ('[budget]\npeak_allocated = "20 GiB\n', "(at line 2, column "),
        ("[budget]\na = 1\na = 2\n", "vram.toml: is not TOML: "),
        (
            "[budget]\n\npeak_alocated = 3\n",
            "vram.toml:3: 'peak_alocated' is not a limit; did you mean peak_allocated?",
        ),
        ("[budget]\nzzz = 3\n", "vram.toml:2: 'zzz' is not a limit (limits: peak_allocated, "),
        (
            '[budget]\npeak_allocated = "20 GiBs"\n',
            "vram.toml:2: peak_allocated = '20 GiBs' is not a size: write",
        ),
        ("[budget]\npeak_allocated = -1\n", "vram.toml:2: peak_allocated = -1 is not a size"),
        (
            f"[budget]\npeak_allocated = {2**63}\n",
            "vram.toml:2: peak_allocated = 9223372036854775808 is not a size",
        ),
        (
            "[budget]\npeak_allocated = '99999999999999999999G'\n",
            "vram.toml:2: peak_allocated = '99999999999999999999G' is not a size",
        ),
        ("[budget]\npeak_allocated = true\n", "vram.toml:2: peak_allocated = True is not a size"),
        ("[budget]\npeak_allocated = 1.5\n", "vram.toml:2: peak_allocated = 1.5 is not a size"),
        ("[budget]\npeak_allocated = [1]\n", "vram.toml:2: peak_allocated = [1] is not a size"),
        ('[budget]\nalloc_retries = "0"\n', "vram.toml:2: alloc_retries = '0' is not a count"),
        (
            "[budget]\nfragmentation = 20\n",
            'vram.toml:2: fragmentation = 20 is not a share: write 0.2 or "20%"',
        ),
        (
            '[budget]\ntolerance = "300%"\n',
            "vram.toml:2: tolerance = '300%' is not a share: write",
        ),
        ("[budget]\nfragmentation = nan\n", "vram.toml:2: fragmentation = nan is not a share"),
        ("[budget]\nmodule = 3\n", 'vram.toml:2: module takes names: [budget.module."NAME"]'),
        ('[budget.module]\n"a.b" = 3\n', 'vram.toml:2: module."a.b" takes limits'),
        (
            '[budget.module."a"]\npeek = 3\n',
            "vram.toml:2: 'peek' is not a limit of a module; its only limit is peak",
        ),
        ('[budget.line."a.py"]\npeak = "much"\n', "vram.toml:2: peak = 'much' is not a size"),
        ('[budget]\npeak_allocated = "' + "9" * 5000 + '.5 GiB"\n', "is not a size"),
        (
            "[budget]\n[recorded]\nline = 3\n",
            "vram.toml: [recorded] is written by --update; delete it",
        ),
        (
            '[budget]\n[recorded.line]\n"no place" = 3\n',
            "vram.toml:3: 'no place' was edited by hand",
        ),
    ],
)
def test_errors_name_the_line_and_the_key(text, said):
    with pytest.raises(InputError) as error:
        read(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "data", [b"\xff\xfe[budget]", b"[budget]\na = " + b"[" * 5000, b"#" * (2 << 20)]
)
def test_hostile_files_are_refused_in_one_line(data):
    with pytest.raises(InputError) as error:
        read_budget(data, "vram.toml")
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)


def test_an_update_keeps_comments_order_and_strangers():
    budget = read(EXAMPLE)
    held = {
        Place("train.py", 44, "forward"): 5 << 20,
        Place('odd "name"\n.py', 1, "f"): 3,
        Place("x.py", 2, "g"): 0,
    }
    values = {
        ("peak_allocated",): (SIZE, 3_077_896_704),
        ("fragmentation",): (SHARE, 0.1234),
        ("module", "model.layers", "peak"): (SIZE, 6 << 30),
    }
    text = update_budget(budget, values, held)
    changed = [
        (a, b) for a, b in zip(EXAMPLE.split("\n"), text.split("\n"), strict=False) if a != b
    ]
    assert changed[:3] == [
        (
            'peak_allocated = "20 GiB"   # an A10G has 24',
            'peak_allocated = "2935.312 MiB"   # an A10G has 24',
        ),
        ("fragmentation = 0.2", "fragmentation = 0.13"),
        ('peak = "8 GiB"  # half of all', 'peak = "6 GiB"  # half of all'),
    ]
    again = read(text)
    assert again.recorded == {place: size for place, size in held.items() if size}
    assert tomllib.loads(text)["other"] == {"tool": "of somebody else"}
    # A second update replaces what the first one wrote.
    twice = update_budget(again, values, {Place("y.py", 1, "h"): 9})
    assert read(twice).recorded == {Place("y.py", 1, "h"): 9}
    assert twice.count("[recorded.line]") == 1


def test_an_update_that_changes_nothing_leaves_the_text():
    text = EXAMPLE.replace("[other]", "[another]")
    same = update_budget(read(text), {}, {})
    assert same == text


@pytest.mark.parametrize(
    "text",
    [
        '[budget]\nmodule."a" = { peak = "1 MiB" }\n',
        'budget = { peak_allocated = "1 MiB" }\n',
        '[budget]\npeak_allocated = """1 MiB"""\n',
    ],
)
def test_what_cannot_be_edited_in_place_is_refused_and_not_mangled(text):
    budget = read(text)
    with pytest.raises(InputError, match=r"vram\.toml.*edited"):
        update_budget(budget, {limit.path: (SIZE, 3 << 20) for limit in budget.limits}, {})


def test_a_line_that_only_looks_like_a_limit_is_not_edited():
    text = '[other]\nnote = """\n[budget]\npeak_allocated = 1\n"""\n[budget]\npeak_allocated = 5\n'
    budget = read(text)
    try:
        made = update_budget(budget, {("peak_allocated",): (SIZE, 4 << 20)}, {})
    except InputError:
        return
    assert tomllib.loads(made)["other"] == tomllib.loads(text)["other"]
    assert read(made).limits[0].value == 4 << 20


def test_windows_line_ends_stay():
    text = EXAMPLE.replace("\n", "\r\n")
    made = update_budget(read(text), {("alloc_retries",): (COUNT, 3)}, {})
    assert "alloc_retries = 3\r\n" in made


def test_a_first_budget_reads_back():
    values = {
        ("peak_allocated",): (SIZE, 12345678),
        ("alloc_retries",): (COUNT, 0),
        ("fragmentation",): (SHARE, 0.5),
    }
    budget = read(new_budget(values, {}))
    assert [limit.scope for limit in budget.limits] == [
        "peak_allocated",
        "alloc_retries",
        "fragmentation",
    ]
    assert 12345678 <= budget.limits[0].value < 12345678 + WRITTEN_STEP_BYTES


@given(st.integers(0, 1 << 45))
def test_a_written_size_is_never_less_and_hardly_more(size):
    text = written_size(size)
    assert size <= parse_size(text.strip('"')) <= size + WRITTEN_STEP_BYTES


names = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=20)


@given(
    st.dictionaries(
        st.tuples(names, st.integers(0, 999), names), st.integers(1, 1 << 40), max_size=5
    )
)
def test_any_place_survives_an_update(held):
    places = {Place(file, line, function): size for (file, line, function), size in held.items()}
    assert read(update_budget(read(EXAMPLE), {}, places)).recorded == places


def test_a_mistyped_table_is_told():
    with pytest.raises(InputError, match=r"did you mean \[budget\] for \[bugdet\]\?"):
        read("[bugdet]\npeak_allocated = 1\n")
    with pytest.raises(InputError, match=r"\(it has \[tool\]\)$"):
        read("[tool]\npeak_allocated = 1\n")
