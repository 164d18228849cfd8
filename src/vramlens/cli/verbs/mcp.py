"""``vramlens mcp``: the questions as tools for coding agents."""

from __future__ import annotations

import argparse

HELP = "Serve the questions to coding agents: the Model Context Protocol over stdin and stdout."
EXAMPLES = (
    ("vramlens mcp", "what an agent's settings start"),
    ("vramlens mcp --sources src", "with the code below src in its answers"),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the one argument: what is asked comes through the protocol."""
    parser.add_argument(
        "--sources",
        default=".",
        metavar="FOLDER",
        help="where the program's files are: answers show the lines that they speak of (default:"
        " the current folder)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serves until the other side closes its end."""
    from vramlens.agents.tool_server import serve

    serve(arguments.sources)
    return 0
