"""Classes of `transformers` that have a head for a task on the body: what kind of head, how it reads, its tensors.

    Headed("tagging", rules({"out.{p}": "classifier.{p}"}))

Directories of other heads hold them under `task.` and say in the config, under `pretune_head`, what they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pretune.models.hf.weights import Rule, rules
from pretune.models.tensor_files import Stored
from pretune.nn.pooling import Reading

HEAD = "pretune_head"
"""The config's key for a head that no class of `transformers` has."""

OWN = "task."
"""What the names of its tensors begin with."""


class Refusing(Protocol):
    """A key that is supported at some values only."""

    def read(self, found: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Headed:
    """One class. `reading` is None where the head reads every token by itself."""

    kind: str  # classification (regression too), tagging, span or choice
    rules: tuple[Rule, ...]
    reading: Reading | None = None
    prefix: str | None = None  # of the body's tensors, where it is not that of the family's other classes
    keys: tuple[Refusing, ...] = field(default=())


def headed(kind: str, table: Mapping[str, str], reading: Reading | None = None, **more: Any) -> Headed:
    """The same, with the rules as a table: `out` is the layer of the classes, `dense` the one before it."""
    return Headed(kind, rules({f"{ours}.{{p}}": f"{theirs}.{{p}}" for ours, theirs in table.items()}), reading, **more)


def tokenwise(name: str, *, tags: str | None = "classifier", spans: str | None = "qa_outputs") -> dict[str, Headed]:
    """The two classes that most families have: a linear layer over every token, for tags and for spans."""
    found = {}
    if tags is not None:
        found[f"{name}ForTokenClassification"] = headed("tagging", {"out": tags})
    if spans is not None:
        found[f"{name}ForQuestionAnswering"] = headed("span", {"out": spans})
    return found


def scored(name: str) -> dict[str, Headed]:
    """The class of decoders: the last token's state, straight to the classes."""
    return {f"{name}ForSequenceClassification": headed("classification", {"out": "score"}, LAST)}


LAST = Reading(at="last", bias=False)
"""What a decoder has read when it has read everything (Radford et al., 2018)."""


def apart(
    stored: Mapping[str, Stored], found: Headed | None, prefix: str
) -> tuple[dict[str, Stored], dict[str, Stored]]:
    """The tensors of the body, with the family's usual prefix, and those of the head."""
    if found is None:
        names = {name for name in stored if name.startswith(OWN)}
    else:
        names = {rule.theirs.format(p=p) for rule in found.rules for p in ("weight", "bias")}
    head = {name: there for name, there in stored.items() if name in names}
    body = {name: there for name, there in stored.items() if name not in names}
    if found is not None and found.prefix is not None:
        body = {prefix + name.removeprefix(found.prefix): there for name, there in body.items()}
    return body, head
