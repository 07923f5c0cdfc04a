"""`pretune vectors`: train static word vectors."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli._hints import hint
from pretune.cli._names import complete_from
from pretune.cli._output import check_new_file
from pretune.cli._progress import show_progress
from pretune.cli.tokenizer import DocumentUnit
from pretune.core import log
from pretune.core.format import format_count


def vectors(
    corpus: Annotated[
        list[str], typer.Argument(metavar="CORPUS", help="Files, folders, globs, pair:A,B, builtin:NAME, hf:NAME.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file, in word2vec's text format.")],
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            metavar="NAME",
            autocompletion=complete_from("word2vec", "glove", "ppmi"),
            help="Algorithm: word2vec, glove or ppmi.",
        ),
    ] = "word2vec",
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="NAME",
            autocompletion=complete_from("skip_gram", "cbow"),
            help="word2vec: skip_gram (default) or cbow.",
        ),
    ] = None,
    width: Annotated[int | None, typer.Option("--width", metavar="N", help="Vector width (default: 100).")] = None,
    window: Annotated[
        int | None, typer.Option("--window", metavar="N", help="Context words on each side (default: 5; glove 10).")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs", metavar="N", help="Training epochs (default: word2vec 5, glove 15; ppmi counts once)."
        ),
    ] = None,
    min_count: Annotated[
        int | None, typer.Option("--min-count", metavar="N", help="Minimum word frequency (default: 5).")
    ] = None,
    max_words: Annotated[
        int | None, typer.Option("--max-words", metavar="N", help="Vocabulary size: keep the most frequent words.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Random seed.")] = 0,
    by: Annotated[DocumentUnit, typer.Option("--by", help="Unit of a document.")] = DocumentUnit.AUTO,
    field: Annotated[str | None, typer.Option("--field", metavar="NAME", help="Text column or JSON field.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train static word vectors on text.

    The file works as an embedding model in embed, evaluate, neighbors and finetune --vectors, and in gensim. The same
    corpus and seed give the same file.

    Example: pretune vectors books/ --kind word2vec --out vectors.txt
    """
    check_new_file(out)
    from pretune.runs.vectors import build_trainer, train_vectors

    options = {"mode": mode, "width": width, "window": window, "epochs": epochs}
    build_trainer(kind, **options, min_count=min_count, max_words=max_words)
    start = time.monotonic()
    with show_progress("reading") as show:

        def report(share: float) -> None:
            show(share, "training" if share == 1 else f"{share:.0%} of the corpus")

        word_vectors = train_vectors(
            corpus,
            kind=kind,
            out=out,
            mode=mode,
            width=width,
            window=window,
            epochs=epochs,
            min_count=min_count,
            max_words=max_words,
            seed=seed,
            by=by.value,
            field=field,
            progress=report,
        )
    seconds = round(time.monotonic() - start, 1)
    if as_json:
        facts = {
            "out": str(out),
            "kind": kind,
            "words": len(word_vectors),
            "width": word_vectors.width,
            "seconds": seconds,
        }
        log.print_json(facts)
        return
    log.print_result(f"{out}: {format_count(len(word_vectors), 'words')} of width {word_vectors.width}, {kind}")
    log.info(f"took {seconds} s")
    hint("neighbors", out, word_vectors.words[0])
