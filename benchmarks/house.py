"""How the code reads, in figures, beside model codebases: complexity, names, positional arguments,
sizes.

    python benchmarks/house.py                  # vramlens, and memray, pyinstrument and httpx where they are installed
    python benchmarks/house.py src/vramlens --worst 20

Complexity is cyclomatic, counted as radon counts it: one a function, and one more for each branch,
loop, handler, assertion, comprehension, condition inside a comprehension, conditional expression
and further operand of `and` or `or`. A nested function counts by itself. Variables are names that
are stored: assigned, bound by a loop, `with` or `except`.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

VAGUE_NAMES = frozenset(
    [
        "one",
        "found",
        "said",
        "told",
        "here",
        "there",
        "each",
        "mine",
        "whole",
        "seen",
        "own",
        "given",
        "asked",
        "kept",
        "held",
        "made",
        "wanted",
        "like",
        "least",
        "most",
        "rest",
        "known",
        "others",
        "same",
        "left",
        "two",
        "it",
        "what",
        "which",
        "whose",
        "of",
        "this",
        "some",
        "few",
    ]
)
EMPTY_NAMES = frozenset({"value", "item", "data", "result"})
"""Words that would only hide a vague name: renaming to them is no cure."""
NOT_COUNTED_TWICE = frozenset({"__init__", "__main__", "story", "json"})
"""One an answer, by design; and the packages' own files."""
MODELS = ("memray", "pyinstrument", "httpx")
Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.IfExp)


@dataclass(frozen=True)
class FunctionSize:
    """One function: where it is, how long, how complex."""

    place: str
    lines: int
    complexity: int
    parameters: int


@dataclass(frozen=True)
class Measures:
    """The figures of one codebase."""

    files: int
    lines: int
    statements: int
    functions: tuple[FunctionSize, ...]
    stored_names: Counter[str]
    long_lines: int
    positional_constructors: int
    many_positional_constructors: int
    modules_of_one_name: int
    classes_of_one_name: int
    largest_folder: int

    @property
    def complexity_per_100_lines(self) -> float:
        """Complexity of all functions, by 100 of their lines."""
        return (
            100
            * sum(function.complexity for function in self.functions)
            / sum(function.lines for function in self.functions)
        )

    def share_above(self, complexity: int) -> float:
        """The share of functions that are more complex than that."""
        return mean(function.complexity > complexity for function in self.functions)

    def share_of_names(self, names: frozenset[str]) -> float:
        """The share of stored names that are among these."""
        return sum(self.stored_names[name] for name in names) / sum(self.stored_names.values())


def inner_nodes(function: Function) -> Iterator[ast.AST]:
    """A function's nodes, without those of functions inside it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def branches_of(node: ast.AST) -> int:
    """By how much one node adds to the complexity of its function."""
    if isinstance(node, BRANCHES):
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    if isinstance(node, ast.match_case):
        return 1
    return 0


def size_of(path: Path, function: Function) -> FunctionSize:
    """The size of one function."""
    arguments = function.args
    parameters = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return FunctionSize(
        place=f"{path}:{function.lineno} {function.name}",
        lines=(function.end_lineno or function.lineno) - function.lineno + 1,
        complexity=1 + sum(map(branches_of, inner_nodes(function))),
        parameters=parameters,
    )


def stored_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Every name that something is stored under."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def constructor_arguments(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """How many positional arguments each call of a class gets; a class is what begins with a
    capital.
    """
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None) or ""
        if name.lstrip("_")[:1].isupper() and not name.isupper():
            yield len(node.args)


def names_used_twice(names: Iterable[str]) -> int:
    """How many names stand for two things or more."""
    return sum(count > 1 for count in Counter(names).values())


def measure(root: Path) -> Measures:
    """The figures of the Python files below a folder."""
    paths = [path for path in sorted(root.rglob("*.py")) if "__pycache__" not in path.parts]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    functions: list[FunctionSize] = []
    constructors: list[int] = []
    classes: list[str] = []
    names: Counter[str] = Counter()
    statements = 0
    for path, text in texts.items():  # one tree at a time: Python's collector is slow over all
        nodes = list(ast.walk(ast.parse(text)))
        functions += [
            size_of(path.relative_to(root), node) for node in nodes if isinstance(node, Function)
        ]
        constructors += constructor_arguments(nodes)
        classes += [node.name for node in nodes if isinstance(node, ast.ClassDef)]
        names.update(stored_names(nodes))
        statements += sum(isinstance(node, ast.stmt) for node in nodes)
    modules = (path.stem for path in paths if path.stem not in NOT_COUNTED_TWICE)
    public_classes = (name for name in classes if not name.startswith("_"))
    return Measures(
        files=len(paths),
        lines=sum(len(text.splitlines()) for text in texts.values()),
        statements=statements,
        functions=tuple(functions),
        stored_names=names,
        long_lines=sum(len(line) > 100 for text in texts.values() for line in text.splitlines()),
        positional_constructors=sum(count > 4 for count in constructors),
        many_positional_constructors=sum(count >= 6 for count in constructors),
        modules_of_one_name=names_used_twice(modules),
        classes_of_one_name=names_used_twice(public_classes),
        largest_folder=max(
            Counter(path.parent for path in paths if path.stem != "__init__").values()
        ),
    )


def rows(measures: Measures) -> dict[str, str]:
    """The table's cells for one codebase, by measure."""
    complexities = [function.complexity for function in measures.functions]
    lengths = [function.lines for function in measures.functions]
    return {
        "files": f"{measures.files}",
        "lines": f"{measures.lines:,}",
        "statements": f"{measures.statements:,}",
        "functions": f"{len(measures.functions):,}",
        "lines of a function, median": f"{median(lengths):.0f}",
        "complexity of a function, mean": f"{mean(complexities):.2f}",
        "complexity per 100 function lines": f"{measures.complexity_per_100_lines:.1f}",
        "functions above complexity 10": f"{measures.share_above(10):.1%}",
        "functions above complexity 20": f"{measures.share_above(20):.1%}",
        "functions with more than 7 parameters": f"{sum(f.parameters > 7 for f in measures.functions)}",
        "vague names": f"{measures.share_of_names(VAGUE_NAMES):.2%}",
        "names value, item, data, result": f"{measures.share_of_names(EMPTY_NAMES):.2%}",
        "constructors with over 4 positional": f"{measures.positional_constructors}",
        "constructors with 6 positional": f"{measures.many_positional_constructors}",
        "lines above 100 characters": f"{measures.long_lines / measures.lines:.2%}",
        "module names used twice": f"{measures.modules_of_one_name}",
        "public class names used twice": f"{measures.classes_of_one_name}",
        "modules in the largest folder": f"{measures.largest_folder}",
    }


def installed(package: str) -> Path | None:
    """Where a package's source lies, if it is installed."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def main() -> None:
    """Prints the table, and on demand the worst functions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folders", nargs="*", type=Path, help="source folders (default: vramlens and the models)"
    )
    parser.add_argument(
        "--worst", type=int, default=0, metavar="N", help="the N most complex functions of each"
    )
    parser.add_argument(
        "--vague", action="store_true", help="how often each vague name stands in each"
    )
    options = parser.parse_args()
    default = [Path(__file__).parents[1] / "src/vramlens", *filter(None, map(installed, MODELS))]
    table = {folder.name: measure(folder) for folder in options.folders or default}
    cells = {name: rows(measures) for name, measures in table.items()}
    print(f"{'':38s}" + "".join(f"{name:>14s}" for name in cells))
    for row in next(iter(cells.values())):
        print(f"{row:38s}" + "".join(f"{columns[row]:>14s}" for columns in cells.values()))
    for name, measures in table.items():
        worst = sorted(measures.functions, key=lambda function: -function.complexity)[
            : options.worst
        ]
        for function in worst:
            print(f"{name}  {function.complexity:3d}  {function.lines:4d} lines  {function.place}")
        if options.vague:
            vague = {
                word: measures.stored_names[word]
                for word in VAGUE_NAMES
                if measures.stored_names[word]
            }
            print(name, dict(sorted(vague.items(), key=lambda pair: -pair[1])))


if __name__ == "__main__":
    main()
