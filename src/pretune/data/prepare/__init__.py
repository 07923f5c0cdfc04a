"""Data preparation: clean, tokenize and split a corpus in parallel, and publish token shards with a data card.

    settings        settings, sources and tokenizer of prepared data, and their fingerprint
    licences        licences of the sources, as stated by the user
    work_units      units of about a megabyte: file ranges, or documents that the parent process reads
    encoding        conversion of a unit to arrays, in any process
    pool            process pool with ordered results and bounded memory
    stage           all tokenized documents on disk, in order, before deduplication
    dedup_split     deduplication, validation split and the shards of each split
    card            data card: contents, sources and dropped documents
    publish         atomic publication of the output directory
    prepared_data   `PreparedData`, a directory of prepared data
    run             `prepare`, and `merge` for slices made on several machines

The output is published completely or not at all. Its bytes depend on the text, the tokenizer and the settings, not on
the number of workers or slices.
"""

from pretune.data.prepare.prepared_data import PreparedData
from pretune.data.prepare.run import merge, prepare

__all__ = ["PreparedData", "merge", "prepare"]
