"""`pretune neighbors`: a word in context, and beside it the same word without."""

from typing import TYPE_CHECKING, Annotated

import typer

from pretune.cli._csv import AsCsv, check_format, print_csv
from pretune.cli._errors import to_one_line
from pretune.cli._hints import hint
from pretune.cli._inputs import read_texts
from pretune.cli._models import BaseOption, load_model
from pretune.cli._names import DEVICES, complete_from
from pretune.core import log
from pretune.core.counted import format_count
from pretune.core.errors import DataError, UsageError, suggest

if TYPE_CHECKING:
    from pretune.analysis.neighbors import Neighbors, Occurrence

CONTEXT_CHARACTERS = 60
"""Characters shown on each side of an occurrence."""
MAX_COMPARED = 100_000
"""Words among which one that is spelled alike is looked for."""


def neighbors(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A run, a Hugging Face directory, hf:OWNER/NAME, or word vectors.")
    ],
    word: Annotated[str, typer.Argument(metavar="WORD", help="The word to look at.")],
    sentence: Annotated[
        str | None, typer.Option("--in", metavar="TEXT", help="A sentence that has it; word vectors need none.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option("--corpus", metavar="FILE", help="Where to look: a text in each line.")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--hits", metavar="N", help="How many neighbours.")] = 10,
    layer: Annotated[int | None, typer.Option("--layer", metavar="N", help="0 to depth; -1, the last, else.")] = None,
    same_word: Annotated[bool, typer.Option("--same", help="Only occurrences of the word itself.")] = False,
    base: BaseOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", autocompletion=complete_from(*DEVICES), help="cpu, cuda; found by default."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: AsCsv = False,
) -> None:
    """Show words nearest to a word in context, and without.

    Example: pretune neighbors runs/books play --in "Kids play in the park." --corpus books.txt
    """
    check_format(as_json, as_csv)
    from pretune.inference.word_vectors import is_word_vectors

    if is_word_vectors(model):
        unread = {"--in": sentence, "--corpus": corpus, "--layer": layer, "--same": same_word or None}
        given = [name for name, value in unread.items() if value is not None]
        if given:
            raise UsageError(f"{given[0]} is for models: word vectors know no context; leave it out")
        _print_static(model, word, k, as_json, as_csv)
        return
    if sentence is None or corpus is None:
        missing = "--in" if sentence is None else "--corpus"
        raise UsageError(f"missing option '{missing}': a model needs a sentence (--in) and texts to look in (--corpus)")
    texts = read_texts(corpus)
    from pretune.analysis.neighbors import neighbors as work

    found = work(
        load_model(model, base=base, device=device), word, sentence, texts.texts, k=k, layer=layer, same_word=same_word
    )
    if found.truncated_lines:
        log.warn(
            f"{format_count(found.truncated_lines, 'lines')} longer than the model reads; only the beginning was looked at"
        )
    if as_json:
        log.print_json(_to_dict(found))
    elif as_csv:
        context = [
            ("context", rank, one.score, one.word, one.line, one.text) for rank, one in enumerate(found.context, 1)
        ]
        static = [("static", rank, one.score, one.word, None, None) for rank, one in enumerate(found.static, 1)]
        print_csv(("kind", "rank", "score", "word", "line", "text"), [*context, *static])
    else:
        _print(found)
    again = ("neighbors", model, word, "--in", sentence, "--corpus", corpus)
    hint(
        *again, *(("--same",) if layer == 0 or same_word else ("--layer", 0)), silent=as_json or as_csv or corpus == "-"
    )


def _print_static(path: str, word: str, k: int, as_json: bool, as_csv: bool) -> None:
    """Print the words nearest to a word in a file of word vectors."""
    from pretune.inference.word_vectors import WordVectors

    if k < 1:
        raise UsageError(f"-k {k} must be at least 1")
    vectors = WordVectors.load(path)
    name = word if word in vectors else word.lower()
    if name not in vectors:
        spelling = suggest(name, vectors.words) if len(vectors) <= MAX_COMPARED else ""
        raise DataError(f"{path}: has no vector of '{word[:60]}'{spelling}; it has {len(vectors):,} words")
    found = vectors.find_nearest(name, k)
    if as_json:
        static = [{"word": each, "score": score} for each, score in found]
        log.print_json({"word": name, "words": len(vectors), "static": static})
        return
    if as_csv:
        print_csv(("kind", "rank", "score", "word"), [("static", i, s, each) for i, (each, s) in enumerate(found, 1)])
        return
    for each, score in found:
        log.print_result(f"  {score:.4f}  {to_one_line(each)}")
    if found:
        hint("neighbors", path, found[0][0])


def _print(result: "Neighbors") -> None:
    log.print_result(
        f"in context (pieces {' '.join(result.pieces)}; {format_count(result.word_count, 'words')} looked at)"
    )
    for one in result.context:
        log.print_result(f"  {one.score:.4f}  {one.line:>6}  {_format_occurrence(one)}")
    log.print_result("without context")
    log.print_result("  " + "  ".join(f"{one.word} {one.score:.3f}" for one in result.static))


def _format_occurrence(occurrence: "Occurrence") -> str:
    """The word in brackets, with what stands around it."""
    end = occurrence.start + len(occurrence.word)
    left, right = (
        occurrence.text[max(0, occurrence.start - CONTEXT_CHARACTERS) : occurrence.start],
        occurrence.text[end : end + CONTEXT_CHARACTERS],
    )
    return " ".join(f"{left}[{occurrence.word}]{right}".split())


def _to_dict(result: "Neighbors") -> dict[str, object]:
    return {
        "pieces": result.pieces,
        "words": result.word_count,
        "cut": result.truncated_lines,
        "context": [one._asdict() for one in result.context],
        "static": [one._asdict() for one in result.static],
    }
