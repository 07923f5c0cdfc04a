"""Data preparation: clean, tokenize and split a corpus in parallel, and publish token shards with a data card.

    settings        settings, sources, licences and tokenizer of prepared data, and their fingerprint
    encoding        units of about a megabyte, and their conversion to arrays, in any process
    pool            process pool with ordered results and bounded memory
    stage           all tokenized documents on disk, in order, before deduplication
    dedup_split     deduplication, validation split and the shards of each split
    card            data card: contents, sources and dropped documents
    run             `prepare`, and `merge` for slices made on several machines

The output is a `pretune.data.prepared_data.PreparedData`. It is published completely or not at all. Its bytes depend on
the text, the tokenizer and the settings, not on the number of workers or slices.
"""
