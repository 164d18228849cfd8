"""A document: what goes first where there is little room, and that all forms have the rest."""

from __future__ import annotations

from vramlens.report.document import (
    Blank,
    Column,
    Command,
    Cut,
    Document,
    Figure,
    Figures,
    Form,
    Heading,
    Items,
    LastColumn,
    Sentences,
    Table,
    alternatives,
    cut_whole,
)
from vramlens.report.html import html_of
from vramlens.report.layout import Layout
from vramlens.report.markdown import markdown_of
from vramlens.report.text import fit_to_screen

WIDE = Layout(80)


def lines(document: Document, room: int | None = None, layout: Layout = WIDE) -> list[str]:
    return [line.plain for line in fit_to_screen(document, layout, room)]


def answer() -> Document:
    return Document(
        (
            Blank(),
            Heading("The answer"),
            Blank(),
            Items(
                ("first", "second", "third"), cuts=(Cut(2, {"texts": ("first",)}), *cut_whole(3))
            ),
            Blank(cuts=cut_whole(1)),
            Blank(),
            Sentences(("Only a page says so.",), forms=Form.MARKDOWN | Form.HTML),
            Command("look", ("vramlens explain x",)),
            Blank(),
        )
    )


def test_all_of_it_where_there_is_room() -> None:
    whole = ["The answer", "", "  first", "  second", "  third", "", "Next, look:"]
    assert lines(answer()) == lines(answer(), 8) == [*whole, "  vramlens explain x"]


def test_what_goes_first_goes_first_and_no_more_than_has_to() -> None:
    assert lines(answer(), 7)[2:4] == ["  first", ""]
    assert lines(answer(), 5) == ["The answer", "", "Next, look:", "  vramlens explain x"]
    assert lines(answer(), 1) == lines(answer(), 5)  # the rest always stays


def test_a_blank_is_neither_first_nor_last_nor_twice() -> None:
    shown = lines(answer())
    assert shown[0]
    assert shown[-1]
    assert ["", ""] not in [shown[at : at + 2] for at in range(len(shown))]


def test_each_alternative_takes_the_place_of_the_one_before() -> None:
    variants = [[Items(("a",) * count)] for count in (3, 2, 1)]
    document = Document(tuple(alternatives(variants)))
    assert [len(lines(document, room)) for room in (None, 3, 2, 1, 0)] == [3, 3, 2, 1, 1]


def test_every_form_has_what_belongs_to_it() -> None:
    assert "Only a page" not in "".join(lines(answer()))
    for page in (markdown_of(answer()), html_of(answer())):
        assert "Only a page says so." in page
        assert "third" in page


def test_names_cannot_become_markup() -> None:
    document = Document((Heading("<script>"), Items(("<b>*x*",)), Sentences(("<i>",))))
    assert "<script>" not in html_of(document)
    assert "<b>" not in html_of(document)
    assert "<script>" not in markdown_of(document)


def test_a_name_is_never_broken_after_a_comma_of_its_own() -> None:
    """A setting is there to be copied: where it has no room, all names stand above."""
    columns = (Column("peak"), Column("setting", is_right=False))
    names = ("x" * 40 + "," + "z" * 20, "y")
    table = Document(
        (Table(columns, (("1 GiB", names[0]), ("2 GiB", names[1])), LastColumn.AS_A_NAME),)
    )
    assert lines(table) == ["   peak  setting", "  1 GiB  " + names[0], "  2 GiB  y"]
    assert lines(table, layout=Layout(60)) == [
        "  setting",
        "     peak",
        "  " + names[0],
        "    1 GiB",
        "  y",
        "    2 GiB",
    ]


def test_names_without_room_stand_above_their_figures() -> None:
    """All of them: a name below its figures would be read as that of the next row."""
    columns = (Column("peak"), Column("setting", is_right=False))
    rows = (("1 GiB", "x" * 56), ("2 GiB", "y"))
    table = Document((Table(columns, rows, LastColumn.AS_A_NAME),))
    assert lines(table, layout=Layout(60)) == [
        "  setting",
        "     peak",
        "  " + "x" * 56,
        "    1 GiB",
        "  y",
        "    2 GiB",
    ]


def test_columns_without_room_are_left_out_and_what_is_cut_is_told() -> None:
    columns = (Column("a" * 15), Column("b" * 15), Column(""))
    rows = (("1", "2", "name"), ("3", "4", "other"))
    table = Table(columns, rows, LastColumn.CUT, title="Names", noun="name", top=1)
    assert lines(Document((table,)))[0].endswith("b  Names (1 of 2 names)")
    assert "b" not in lines(Document((table,)), layout=Layout(40))[0]


def test_bars_of_figures_that_are_no_sizes() -> None:
    document = Document((Figures((Figure("3", "words"),)),))
    assert "width:0.00rem" in html_of(document)
