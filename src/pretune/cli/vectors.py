"""`pretune vectors`: train static word vectors."""

import time
from pathlib import Path
from typing import Annotated, Any

from pretune.cli._options import AsJson, Corpus, DocumentUnit, TextField, Unit, complete_names, option
from pretune.cli._output import check_new_file, hint, show_progress
from pretune.core import log
from pretune.core.format import format_count


def vectors(
    corpus: Corpus,
    out: Annotated[Path, option("--out FILE", "Output file, in word2vec's text format.")],
    kind: Annotated[
        str, option("--kind NAME", "Algorithm: word2vec, glove or ppmi.", complete_names("word2vec", "glove", "ppmi"))
    ] = "word2vec",
    mode: Annotated[
        str | None, option("--mode NAME", "word2vec: skip_gram (default) or cbow.", complete_names("skip_gram", "cbow"))
    ] = None,
    width: Annotated[int | None, option("--width N", "Vector width (default: 100).")] = None,
    window: Annotated[int | None, option("--window N", "Context words on each side (default: 5; glove 10).")] = None,
    epochs: Annotated[
        int | None, option("--epochs N", "Training epochs (default: word2vec 5, glove 15; ppmi counts once).")
    ] = None,
    min_count: Annotated[int | None, option("--min-count N", "Minimum word frequency (default: 5).")] = None,
    max_words: Annotated[int | None, option("--max-words N", "Vocabulary size: keep the most frequent words.")] = None,
    seed: Annotated[int, option("--seed N", "Random seed.")] = 0,
    by: Unit = DocumentUnit.AUTO,
    field: TextField = None,
    as_json: AsJson = False,
) -> None:
    """Train static word vectors on text.

    The file works as an embedding model in embed, evaluate, neighbors and finetune --vectors, and in gensim. The same
    corpus and seed give the same file.

    Example: pretune vectors books/ --kind word2vec --out vectors.txt
    """
    check_new_file(out)
    from pretune.runs.vectors import build_trainer, train_vectors

    options: dict[str, Any] = {"mode": mode, "width": width, "window": window, "epochs": epochs}
    options |= {"min_count": min_count, "max_words": max_words}
    build_trainer(kind, **options)  # raises before the corpus is read
    start = time.monotonic()
    with show_progress("reading") as show:

        def report(share: float) -> None:
            show(share, "training" if share == 1 else f"{share:.0%} of the corpus")

        word_vectors = train_vectors(
            corpus, kind=kind, out=out, seed=seed, by=by.value, field=field, progress=report, **options
        )
    seconds = round(time.monotonic() - start, 1)
    if as_json:
        facts = {"out": str(out), "kind": kind, "words": len(word_vectors), "width": word_vectors.width}
        log.print_json({**facts, "seconds": seconds})
        return
    log.print_result(f"{out}: {format_count(len(word_vectors), 'words')} of width {word_vectors.width}, {kind}")
    log.info(f"took {seconds} s")
    hint("neighbors", out, word_vectors.words[0])
