"""Code that is quoted has no comment at its end, and keeps what only looks like one."""

from __future__ import annotations

import ast

import pytest

from vramlens.ground.source_code import called, last_line_of, without_comment


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ("loss.backward()  # note", "loss.backward()"),
        ("kept['a#b'].append(x)  # it's kept", "kept['a#b'].append(x)"),
        ('print(f"#{step} {x}")#1', 'print(f"#{step} {x}")'),
        ("history.append(", "history.append("),
        ("history.append(  # all of them", "history.append("),
        ("for x in y:  # each", "for x in y:"),
        ("    loss = f(x)  # deeper", "    loss = f(x)"),
        ("plain(x)", "plain(x)"),
        ("# only this", "# only this"),
        ("the end of 'a text # with a number", "the end of 'a text # with a number"),
        ("two\nlines  # here", "two\nlines  # here"),
        ("nothing\0  # of the kind", "nothing\0  # of the kind"),
        ("half \ud800  # of a pair", "half \ud800  # of a pair"),
        (")" * 300 + "(" * 300, ")" * 300 + "(" * 300),
        ("", ""),
    ],
)
def test_only_the_comment_goes(line: str, quoted: str) -> None:
    assert without_comment(line) == quoted


@pytest.mark.parametrize(
    ("text", "name"),
    [("x.sum(1)", "sum"), ("torch.sum(x)", "sum"), ("f()", "f"), ("f()()", ""), ("x.sum", "")],
)
def test_a_call_by_its_last_name(text: str, name: str) -> None:
    assert called(ast.parse(text, mode="eval").body) == name


def test_a_statement_ends_where_its_body_does() -> None:
    (loop,) = ast.parse("for x in y:\n    f(\n        x)\n").body
    assert last_line_of(loop) == 3
