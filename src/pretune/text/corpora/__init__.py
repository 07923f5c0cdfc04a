"""Corpora: text of any kind as a stream of documents, in bounded memory.

    corpus = open_corpus(["books/", "news.jsonl.gz", "wiki/*.txt.xz", "builtin:docs"])
    for document in corpus.documents():
        document.text, document.source, document.where       # where: "books/a.txt:120"
    corpus.counts                                             # {'binary_files': 2, 'empty_documents': 1}

Files are recognised by content (`sniffing`), decompressed (`streams`) and decoded (`decoding`) a chunk at a time, then
cut into documents (`splitting`, `tables`). Opening checks what can be checked; a fault met later stops with the file
and the byte or line.
"""

from pretune.text.corpora.corpus import Corpus, Part, Source, open_corpus
from pretune.text.corpora.document import LONGEST, Document
from pretune.text.corpora.heldout import held_out, split_off

__all__ = ["LONGEST", "Corpus", "Document", "Part", "Source", "held_out", "open_corpus", "split_off"]
