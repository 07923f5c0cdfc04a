"""`pretune neighbors`: nearest neighbors of a word, contextual and static; `pretune vectors`: train static vectors."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.cli._errors import to_one_line
from pretune.cli._inputs import load_model, read_texts
from pretune.cli._options import EMBEDDING_MODEL, OutputFormat, TableFormat, list_flags
from pretune.cli._output import check_new_file, hint, print_data, print_facts, show_progress
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import DataError, UsageError, suggest
from pretune.core.log import format_count
from pretune.runs.options import BASE, DEVICE, VectorsOptions

if TYPE_CHECKING:
    from pretune.analysis.neighbors import Neighbors, Occurrence


CONTEXT_CHARACTERS = 60
"""Characters shown on each side of an occurrence."""
MAX_COMPARED = 100_000
"""Maximum vocabulary size for spelling suggestions."""


@option_set
class NeighborsOptions(Options):
    """Options of the search for neighbors of a word."""

    model: str = EMBEDDING_MODEL.field()
    word: str = option("WORD", "Query word.", is_required=True)
    sentence: str | None = option("--in TEXT", "Sentence with the word; not for word vectors.")
    corpus: str | None = option("--corpus FILE", "Texts to search, one per line.")
    k: int = option("-k --hits N", "Number of neighbors.", default=10)
    layer: int | None = option("--layer N", "Layer, 0 (embeddings) to depth (default: -1, the last).")
    same_word: bool = option("--same", "Search only occurrences of the same word.", default=False)
    base: Path | None = BASE.field()
    device: str | None = DEVICE.field()


def neighbors(options: NeighborsOptions, output: TableFormat) -> None:
    """Find the nearest neighbors of a word in context.

    Example: pretune neighbors runs/books play --in "Kids play in the park." --corpus books.txt
    """
    model, word, sentence, corpus = options.model, options.word, options.sentence, options.corpus
    from pretune.inference.word_vectors import is_word_vectors

    if is_word_vectors(model):
        for flag in list_flags(options, "sentence", "corpus", "layer", "same_word"):
            raise UsageError(f"{flag} is not supported for word vectors, which have no context; remove it")
        _print_static(model, word, options.k, output)
        return
    if sentence is None or corpus is None:
        missing = "--in" if sentence is None else "--corpus"
        raise UsageError(f"missing option '{missing}': a model needs a sentence (--in) and texts to search (--corpus)")
    texts = read_texts(corpus)
    from pretune.analysis.neighbors import neighbors as work

    result = work(
        load_model(model, base=options.base, device=options.device),
        word,
        sentence,
        texts.texts,
        k=options.k,
        layer=options.layer,
        same_word=options.same_word,
    )
    if result.truncated_lines:
        log.warn(f"{format_count(result.truncated_lines, 'lines')} truncated to the model's maximum length")
    context = [("context", rank, n.score, n.word, n.line, n.text) for rank, n in enumerate(result.context, 1)]
    static = [("static", rank, n.score, n.word, None, None) for rank, n in enumerate(result.static, 1)]
    header = ("kind", "rank", "score", "word", "line", "text")
    facts = {
        "pieces": result.pieces,
        "words": result.word_count,
        "cut": result.truncated_lines,
        "context": [neighbor._asdict() for neighbor in result.context],
        "static": [neighbor._asdict() for neighbor in result.static],
    }
    if not print_data(output, facts, header, [*context, *static]):
        _print(result)
    command = ("neighbors", model, word, "--in", sentence, "--corpus", corpus)
    variation = ("--same",) if options.layer == 0 or options.same_word else ("--layer", 0)
    hint(*command, *variation, silent=not output.is_text or corpus == "-")


def _print_static(path: str, word: str, k: int, output: TableFormat) -> None:
    """Print the nearest neighbors of a word in a file of word vectors."""
    from pretune.inference.word_vectors import WordVectors

    vectors = WordVectors.load(path)
    name = word if word in vectors else word.lower()
    if name not in vectors:
        spelling = suggest(name, vectors.words) if len(vectors) <= MAX_COMPARED else ""
        raise DataError(f"{path}: no vector of '{word[:60]}'{spelling}; the vocabulary has {len(vectors):,} words")
    nearest = vectors.find_nearest(name, k)
    static = [{"word": neighbor, "score": score} for neighbor, score in nearest]
    facts = {"word": name, "words": len(vectors), "static": static}
    rows = (("static", rank, score, neighbor) for rank, (neighbor, score) in enumerate(nearest, 1))
    if print_data(output, facts, ("kind", "rank", "score", "word"), rows):
        return
    for neighbor, score in nearest:
        log.print_result(f"  {score:.4f}  {to_one_line(neighbor)}")
    if nearest:
        hint("neighbors", path, nearest[0][0])


def _print(result: "Neighbors") -> None:
    log.print_result(
        f"in context (pieces {' '.join(result.pieces)}; {format_count(result.word_count, 'words')} searched)"
    )
    for neighbor in result.context:
        log.print_result(f"  {neighbor.score:.4f}  {neighbor.line:>6}  {_format_occurrence(neighbor)}")
    log.print_result("without context")
    log.print_result("  " + "  ".join(f"{neighbor.word} {neighbor.score:.3f}" for neighbor in result.static))


def _format_occurrence(occurrence: "Occurrence") -> str:
    """Return the word in brackets with its context."""
    text, start, end = occurrence.text, occurrence.start, occurrence.start + len(occurrence.word)
    left, right = text[max(0, start - CONTEXT_CHARACTERS) : start], text[end : end + CONTEXT_CHARACTERS]
    return " ".join(f"{left}[{occurrence.word}]{right}".split())


def vectors(options: VectorsOptions, output: OutputFormat) -> None:
    """Train static word vectors on text.

    The file works as an embedding model in embed, evaluate, neighbors and finetune --vectors, and in gensim. The same
    corpus and seed give the same file.

    Example: pretune vectors books/ --kind word2vec --out vectors.txt
    """
    assert options.out is not None
    out = Path(options.out)
    check_new_file(out)
    from pretune.runs.vectors import build_trainer, run_vectors

    build_trainer(options)  # raises before the corpus is read
    start = time.monotonic()
    with show_progress("reading") as show:

        def report(share: float) -> None:
            show(share, "training" if share == 1 else f"{share:.0%} of the corpus")

        word_vectors = run_vectors(replace(options, progress=report))
    seconds, width = round(time.monotonic() - start, 1), word_vectors.width
    facts = {"out": str(out), "kind": options.kind, "words": len(word_vectors), "width": width, "seconds": seconds}
    print_facts(output, facts, f"{out}: {format_count(len(word_vectors), 'words')} of width {width}, {options.kind}")
    if output.is_text:
        log.info(f"took {seconds} s")
        hint("neighbors", out, word_vectors.words[0])
