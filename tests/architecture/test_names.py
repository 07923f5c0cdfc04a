"""The language of the code: no bare participle, preposition, quantifier or pronoun as a name; docstrings that state."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import files, name_of, parse, violations_of, walk

FORBIDDEN = frozenset(
    """
    found told said kept given made begun beside most few one some whole plain own at
    asked wanted taken seen known heard held drawn shown meant sent built brought thought taught learnt spent chosen
    wish wishes wished lesson lessons sight sights judge judges judged judging tell tells say says saying hear heed
    settle settled tidy spoil spoilt adopt fresh marks twins odd think thinks waited written planned
    among whether who whom which where why so many much fewest them they it its there here now then beyond
    nothing something anything everything everyone usual usually ever never again too
    least lasting onlooker trainee told_of
    """.split()  # noqa: SIM905 (columns of words)
)
"""Names that say nothing about what they hold, of whatever kind."""

ALSO_FORBIDDEN = frozenset(
    """
    what how before after until upto within without above below behind ahead away alone apart together other_one others
    another both either neither none each left_out only even still already later soon once twice always often off_it
    opened
    """.split()  # noqa: SIM905
)
"""Forbidden too, except for fields, which are keys of files, and booleans, which read as such ("tied")."""

VERBS_IN_ED = frozenset({"embed", "feed", "seed", "need", "shed", "exceed", "proceed"})
QUESTIONS = re.compile(r"(What|How|Whether|Where|Who|Whom|Whose|Which|When|Why)\b")


def bindings(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Every name that is bound, with its line and whether it is a field of a class or a boolean argument."""
    fields = {
        id(part.target)
        for node in walk(tree)
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.AnnAssign)
    }
    for node in walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name, False
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, isinstance(node.annotation, ast.Name) and node.annotation.id == "bool"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id, id(node) in fields
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr, True
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name, False
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname, False


def is_forbidden(name: str, is_field: bool) -> bool:
    """A forbidden word, or a single participle ("merged"); fields and booleans may be participles ("tied")."""
    word = name.strip("_").lower()
    if word in FORBIDDEN:
        return True
    return not is_field and (
        word in ALSO_FORBIDDEN or (word.isalpha() and word.endswith("ed") and word not in VERBS_IN_ED)
    )


def forbidden_names(file: Path) -> list[str]:
    tree = parse(file.read_text(encoding="utf-8"))
    return [f"line {line}: '{name}'" for line, name, field in sorted(set(bindings(tree))) if is_forbidden(name, field)]


def questions(file: Path) -> list[str]:
    """Docstrings that open with an interrogative, of modules, classes, functions and values."""
    tree = parse(file.read_text(encoding="utf-8"))
    return [
        f"line {part.lineno}: {part.value.value.strip()[:40]!r}"
        for node in walk(tree)
        for part in (getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else None) or []
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)
        if QUESTIONS.match(part.value.value.strip())
    ]


def test_no_name_is_a_bare_participle_or_pronoun() -> None:
    assert violations_of(forbidden_names) == []


def test_no_docstring_opens_with_a_question_word() -> None:
    assert violations_of(questions) == []


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for file in files():
        for node in walk(parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name_of(file))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_the_guards_notice(tmp_path: Path) -> None:
    source = '''
"""What it is."""
def found(at, *, rows):
    """Whether it is."""
    self.said = 1
    for one in rows:
        merged = one
class Kept:
    tied: bool
    most: int
'''
    (tmp_path / "bad.py").write_text(source)
    names = [fault.split("'")[1] for fault in forbidden_names(tmp_path / "bad.py")]
    assert sorted(names) == ["Kept", "at", "found", "merged", "most", "one", "said"]
    assert len(questions(tmp_path / "bad.py")) == 2
