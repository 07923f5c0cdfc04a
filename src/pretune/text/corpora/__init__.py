"""Corpora: text of any kind as a stream of documents, in bounded memory.

    corpus = open_corpus(["books/", "news.jsonl.gz", "wiki/*.txt.xz", "builtin:docs"])
    for document in corpus.read_documents():
        document.text, document.source, document.location    # location: "books/a.txt:120"
    corpus.counts                                             # {'binary_files': 2, 'empty_documents': 1}

Formats are detected by content (`format_detection`); files are decompressed and decoded in chunks (`streams`), then
split into documents (`tables`). Opening validates as much as possible; a later error names the file and the byte or
line.
"""

from pretune.text.corpora.corpus import Corpus, CorpusPart, CorpusSource, is_held_out, open_corpus
from pretune.text.corpora.document import MAX_CHARACTERS, Document

__all__ = ["MAX_CHARACTERS", "Corpus", "Document", "CorpusPart", "CorpusSource", "is_held_out", "open_corpus"]
