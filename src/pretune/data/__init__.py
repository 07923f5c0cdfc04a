"""TOKENS -> BATCHES: shards on disk, samples cut from them, packed into rows and laid out as the model's input batch."""
