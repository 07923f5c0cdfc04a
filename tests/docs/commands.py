"""The commands that pages and scripts write down, and what can be said of them without running them."""

import argparse
import ast
import contextlib
import io
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import MagicMock

from pretune.cli import VERBS, app
from tests.readme.page import blocks, prose

ROOT = Path(__file__).parents[2]
COMMON = ROOT / "bench/common.py"
GLOBAL = {"--debug", "--quiet", "--help"}
PYTEST = {"-m", "-k", "-s", "-q", "-n", "-x"}
_SPAN = re.compile(r"`([^`]+)`")
_ENVIRONMENT = re.compile(r"[A-Z_]+=\S*")
_STANDS_FOR = re.compile(r"[A-Z]+|…|.*…")


class Unknown(Exception):
    """A command that cannot be typed."""


def spans(text: str) -> list[str]:
    """Code within the prose of a page, each in one line."""
    return [re.sub(r"\s+", " ", code).replace("\\|", "|") for code in _SPAN.findall(prose(text))]


def fenced(text: str) -> Iterator[str]:
    """Lines of the blocks of code on a page; those that go on in the next are joined, comments cut off."""
    for block in blocks(text):
        for line in block.code.replace("\\\n", " ").splitlines():
            typed = re.split(r"\s#\s", line)[0].removeprefix("$ ")
            yield re.sub(r"\$[A-Z]+", "1", typed).strip()


def usage(text: str) -> list[str]:
    """The commands of a script's docstring; what stands two columns to the right of one is no part of it."""
    found: list[str] = []
    for line in (ast.get_docstring(ast.parse(text)) or "").splitlines():
        said = re.split(r"  +|#", line.strip())[0].strip()
        if line.startswith("    ") and "bench." in said:
            found.append(said)
        elif line.startswith("        ") and found and said.startswith("["):
            found[-1] += f" {said}"
    return found


def words(command: str) -> list[str]:
    """What is typed, without the environment: what may be left out is there, of several things the first is."""
    open_ = re.sub(r"[\[\]]", "", command)
    typed = [word.split("|")[0] for word in shlex.split(open_) if word != "…" or not open_.endswith("…")]
    while typed and _ENVIRONMENT.fullmatch(typed[0]):
        typed.pop(0)
    return typed


def check(command: str, *, whole: bool = False) -> bool:
    """Whether it is a command of ours; `Unknown` is raised where it is one that cannot be typed.

    In prose a verb may stand without what it needs; where `whole` is true it may not.
    """
    try:
        typed = words(command)
    except ValueError:  # prose
        return False
    started = typed[:1] == ["python"]
    typed = typed[1 + (typed[1:2] == ["-m"]) :] if started else typed
    if not typed:
        return False
    name, *rest = typed
    if script := find_script(name):
        _script(script, rest, whole=started and "…" not in command)
        return True
    kinds: Mapping[str, Callable[[list[str]], None]] = {"pytest": _pytest, "make": _make, "pretune": _pretune}
    if name not in kinds or not rest:
        return False
    kinds[name](rest)
    if whole and name == "pretune" and "…" not in command:
        _typed(rest)
    return True


def find_script(name: str) -> str | None:
    """Return the path of a script of bench/, which is run as a module and named by either."""
    if re.fullmatch(r"bench(\.\w+)+", name) and not name.endswith(".py"):
        return f"{name.replace('.', '/')}.py"
    return name if re.fullmatch(r"bench/[\w/]+\.py", name) else None


def options(name: str) -> set[str]:
    """The options that a script, by its path, or a verb takes."""
    if name.endswith(".py"):
        return {option for action in _parser(name)._actions for option in action.option_strings}
    commands = [app.build_command(one, app.ANALYSES) for one in app.ANALYSES] if name == "analyze" else [_verb(name)]
    parameters = [parameter for command in commands for parameter in command.params]
    return {option for one in parameters for option in (*one.opts, *one.secondary_opts)} | GLOBAL


def _script(name: str, rest: list[str], *, whole: bool) -> None:
    parser = _parser(name)
    if whole:
        _parsed(parser, rest)
        return
    if wrong := [word for word in rest if word.startswith("--") and word not in options(name)]:
        raise Unknown(f"{name} has no {wrong[0]}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Unknown(f"{self.prog}: {message}")


def _parsed(parser: argparse.ArgumentParser, rest: list[str]) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        parser.parse_args(rest)


@cache
def _parser(name: str) -> argparse.ArgumentParser:
    """The parser of a script, whose statements are run alone: what it imports is not, and stands for anything."""
    parser, known = _Parser(name, allow_abbrev=False), _Anything()
    known.update(parser=SimpleNamespace(add_argument=lambda *names, **given: _add(parser, names, given)), Path=Path)
    if not (ROOT / name).is_file():
        raise Unknown(f"there is no {name}")
    source = (ROOT / name).read_text(encoding="utf-8")
    functions = [
        node for node in ast.parse(COMMON.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)
    ]
    shared = [node for node in functions if re.search(rf"common\.{node.name}\((__doc__|parser)\)", source)]
    for statement in _statements(ast.Module([*ast.parse(source).body, *shared], [])):
        exec(compile(ast.Module([statement], []), name, "exec"), {"__file__": str(ROOT / name)}, known)
    return parser


class _Anything(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        if name in __builtins__:  # type: ignore[operator]
            raise KeyError(name)
        return MagicMock()


def _add(parser: argparse.ArgumentParser, names: tuple[str, ...], given: dict[str, Any]) -> None:
    kept = {key: given[key] for key in ("action", "nargs", "required", "dest") if key in given}
    if isinstance(choices := given.get("choices"), list | tuple) and choices:
        kept["choices"] = choices
    if (kind := given.get("type")) in (int, float):
        kept["type"] = lambda word: word if _STANDS_FOR.fullmatch(word) else kind(word)
    parser.add_argument(*names, **kept)


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Those that add an argument, or do so for each of several."""
    for part in ast.iter_child_nodes(tree):
        adds = [node for node in ast.walk(part) if isinstance(node, ast.Attribute) and node.attr == "add_argument"]
        for node in adds:
            node.value = ast.copy_location(ast.Name("parser", ast.Load()), node.value)  # or a group of it
        if adds and isinstance(part, ast.Expr | ast.For):
            yield part
        elif adds:
            yield from _statements(part)


def _pytest(rest: list[str]) -> None:
    for at, word in enumerate(rest):
        if word.startswith("-") and word not in PYTEST:
            raise Unknown(f"pytest {word}")
        if word.startswith("tests/") and not (ROOT / word).exists():
            raise Unknown(f"there is no {word}")
        if word == "-m" and not set(re.findall(r"\w+", rest[at + 1])) <= {"slow", "gpu", "not", "and", "or"}:
            raise Unknown(f"no marker is called {rest[at + 1]}")


def _make(rest: list[str]) -> None:
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    if rest[0] not in goals:
        raise Unknown(f"make {rest[0]}")


def _pretune(rest: list[str]) -> None:
    verb, *given = rest
    if verb.startswith("-") or verb == "VERB":
        return
    if verb not in VERBS:
        raise Unknown(f"pretune {verb}")
    known = options(verb)
    if wrong := [word for word in given if re.match(r"--?[a-z]", word) and word not in known]:
        raise Unknown(f"pretune {verb} has no {wrong[0]}")


def _typed(rest: list[str]) -> None:
    """As the command line reads it, up to what a shell takes for itself."""
    verb, *given = itertools.takewhile(lambda word: word not in (">", "<", "", "&&"), rest)
    if not verb.startswith("-"):
        try:
            is_analysis = verb == "analyze" and given[:1] != ["--help"]
            command = app.build_command(given[0], app.ANALYSES) if is_analysis else _verb(verb)
            command.make_context(verb, given[1:] if is_analysis else given)
        except Exception as error:  # NOTE: which class it is depends on the release of typer
            raise Unknown(f"pretune {verb}: {error}") from None


@cache
def _verb(verb: str) -> Any:
    return app.build_command(verb)
