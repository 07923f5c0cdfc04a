"""Measures of the size and width of `src/pretune`: `python -m tests.architecture.measures` prints them.

`test_measures.py` holds them below the ceilings of `CEILINGS`, so that `make check` stops a change that widens an
interface or closes a circle of imports without anybody noticing.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

from tests.architecture import source
from tests.architecture.executed_files import list_files

CEILINGS = {
    "code lines": 67_800,
    "files": 464,
    "import circles": 0,
    "functions of 60 and more lines": 3,
    "functions with 12 and more arguments": 12,
    "dict[str, Any] and Mapping[str, Any]": 178,
    "# fmt: skip": 38,
    "**x: Any": 8,
    "**x: Any in runs": 0,
    "files to the first step of pretrain": 76,
    "files to the first step of finetune": 90,
    "fields of Trainer": 10,
    "methods of TaskType": 22,
    "fields of TaskType": 8,
    "code lines of tests": 61_000,
}
"""The most that each measure may be. Lower one when the code is below it; raise one with the reason in the commit."""
TASK_TYPE_PARTS = ("TaskType", "Inputs", "Outputs", "Scoring")
"""The class, and the three parts that a type composes (three of the fields)."""
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
QUOTES = re.compile("\"{3}|'{3}")


def count_code_lines(text: str, nodes: Iterable[ast.AST] | None = None) -> int:
    """Count the lines that bear code, without docstrings, comments and blank lines; `nodes` are those of the text."""
    texts = [line.strip() for line in text.splitlines()]
    lines = {number for number, line in enumerate(texts, 1) if line and not line.startswith("#")}
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)) if nodes is None else nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif (
            isinstance(node, ast.Constant | ast.JoinedStr)
            and (end := node.end_lineno or 0) > node.lineno
            and QUOTES.search("\n".join(texts[node.lineno - 1 : end]))
        ):
            lines.update(range(node.lineno, end + 1))  # blank lines are a part of the text
    return len(lines - docstrings)


def find_functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each function and method of the package with its file."""
    for file in source.files():
        for node in source.walk(source.parse(file.read_text())):
            if isinstance(node, FUNCTION):
                yield source.name_of(file), node


def count_arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the arguments of a function without `self` and `cls`; `*` and `**` count one each."""
    a = node.args
    names = [argument.arg for argument in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")]) + bool(a.vararg) + bool(a.kwarg)


def count_source_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function from its signature to its end."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def list_long_functions(limit: int = 60) -> list[str]:
    return [f"{file}:{node.name} {n}" for file, node in find_functions() if (n := count_source_lines(node)) >= limit]


def list_wide_functions(limit: int = 12) -> list[str]:
    return [f"{file}:{node.name} {n}" for file, node in find_functions() if (n := count_arguments(node)) >= limit]


@cache
def build_import_graph() -> dict[str, set[str]]:
    """Build the graph of the package's modules: imports anywhere in a file, those for type checkers included."""
    modules = {source.name_of(file).removesuffix(".py").replace("/", "."): file for file in source.files()}
    modules = {name.removesuffix(".__init__"): file for name, file in modules.items()}
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        names = [name for _, name in source.imports(source.parse(file.read_text()))]
        targets = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = {target for target in targets if target in modules and target not in (module, "pretune")}
    return graph


def list_circles() -> list[list[str]]:
    """List the groups of modules that import each other (the strongly connected components of the graph)."""
    graph = build_import_graph()
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        queue = [start]
        while queue:
            fresh = graph[queue.pop()] - seen
            seen |= fresh
            queue.extend(fresh)
        reached[start] = seen
    circles = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph if a in reached[a]}
    return sorted(sorted(circle) for circle in circles)


def count_pattern(pattern: str, folder: str = "") -> int:
    return sum(len(re.findall(pattern, file.read_text())) for file in sorted((source.PACKAGE / folder).rglob("*.py")))


def find_class(path: str, name: str) -> ast.ClassDef:
    tree = source.parse((source.PACKAGE / path).read_text())
    return next(node for node in source.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)


def count_fields(path: str, name: str) -> int:
    """Count the annotated fields of a class body that its constructor takes."""
    fields = [node for node in find_class(path, name).body if isinstance(node, ast.AnnAssign)]
    return sum("init=False" not in ast.unparse(node) for node in fields)


def count_methods(path: str, name: str) -> int:
    return sum(isinstance(node, FUNCTION) for node in find_class(path, name).body)


def measure() -> dict[str, int]:
    """Measure the package, and the code lines of its tests."""
    texts = [file.read_text() for file in source.files()]
    tests = sorted((source.SRC.parent / "tests").rglob("*.py"))
    return {
        "code lines": sum(count_code_lines(text, source.walk(source.parse(text))) for text in texts),
        "files": len(source.files()),
        "import circles": len(list_circles()),
        "functions of 60 and more lines": len(list_long_functions()),
        "functions with 12 and more arguments": len(list_wide_functions()),
        "dict[str, Any] and Mapping[str, Any]": count_pattern(r"(?:dict|Mapping)\[str, Any\]"),
        "# fmt: skip": count_pattern(r"# fmt: skip"),
        "**x: Any": count_pattern(r"\*\*\w+: Any"),
        "**x: Any in runs": count_pattern(r"\*\*\w+: Any", "runs"),
        "files to the first step of pretrain": len(list_files()["pretrain"]),
        "files to the first step of finetune": len(list_files()["finetune"]),
        "fields of Trainer": count_fields("training/trainer.py", "Trainer"),
        "methods of TaskType": sum(count_methods("tasks/types/base.py", name) for name in TASK_TYPE_PARTS),
        "fields of TaskType": sum(count_fields("tasks/types/base.py", name) for name in TASK_TYPE_PARTS),
        "code lines of tests": sum(count_code_lines(file.read_text()) for file in tests),
    }


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{value:8,}  {name}")
    for title, rows in (("long", list_long_functions()), ("wide", list_wide_functions())):
        print(f"\n{title}:", *sorted(rows), sep="\n  ")
    print("\ncircles:", *list_circles(), sep="\n  ")
