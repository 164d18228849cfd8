"""``vramlens mcp``: the questions as tools for coding agents."""

from __future__ import annotations

import argparse

HELP = "Answer coding agents: a server for the Model Context Protocol on stdin and stdout."
EXAMPLES = (
    ("vramlens mcp", "the command for an agent's settings"),
    ("vramlens mcp --sources src", "answers quote code in src"),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the one argument: what is asked comes through the protocol."""
    parser.add_argument(
        "--sources",
        default=".",
        metavar="FOLDER",
        help="the program's folder, whose lines the answers quote (default: the current folder)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serves until the other side closes its end."""
    from vramlens.agents.tool_server import serve

    serve(arguments.sources)
    return 0
