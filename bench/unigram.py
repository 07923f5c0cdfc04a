"""Unigram tokenizer training, compared with SentencePiece on the same text.

    pip install sentencepiece        the peer, needed only by this script
    PYTHONPATH=src python bench/unigram.py [--megabytes 5] [--vocab 8000]

Both trainers get the same lines of wikipedia-en, the same vocabulary size (including 256 bytes and four special tokens)
and the same character coverage. Prints CPU seconds, tokens and tokens per word of wikipedia-en/valid, the share of our
pieces that SentencePiece also has, and the pieces that join letters with digits or punctuation (there should be none).
"""

import io

import common
from tokenizer_training import read_texts

COVERAGE = 0.9999


def find_mixed_pieces(pieces: set[str]) -> list[str]:
    """Return the pieces that join letters with digits or punctuation."""
    bodies = [piece.removeprefix("▁") for piece in pieces]
    return [
        body
        for body in bodies
        if any(c.isalpha() for c in body) and any(c.isdigit() or (c.isascii() and not c.isalnum()) for c in body)
    ]


def main() -> None:
    from pretune.text.tokenizer.training import train

    parser = common.build_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=5)
    parser.add_argument("--vocab", type=int, default=8000)
    options = parser.parse_args()
    import sentencepiece

    lines = [line for text in read_texts(int(options.megabytes * 1e6)) for line in text.splitlines() if line.strip()]
    valid = [line for line in common.read_corpus("wikipedia-en/valid").splitlines() if line.strip()]
    words = sum(len(line.split()) for line in valid)

    seconds, ours = common.time_call(lambda: train("unigram", lines, vocab=options.vocab, style="plain"))
    special = ours.special_ids
    our_pieces = {ours.get_token(i) for i in range(ours.vocab) if i not in special}

    model = io.BytesIO()
    arguments = {
        "sentence_iterator": iter(lines),
        "model_writer": model,
        "model_type": "unigram",
        "vocab_size": options.vocab,
        "byte_fallback": True,
        "character_coverage": COVERAGE,
        "pad_id": 3,
        "max_sentence_length": 10**6,
        "minloglevel": 2,
        "num_threads": 1,
    }
    their_seconds, _ = common.time_call(lambda: sentencepiece.SentencePieceTrainer.train(**arguments))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    their_pieces = {theirs.id_to_piece(i) for i in range(theirs.vocab_size()) if not theirs.is_control(i)}

    rows = [
        ("pretune", seconds, len(ours.encode_batch(valid).ids), our_pieces),
        ("sentencepiece", their_seconds, sum(map(len, theirs.encode(valid))), their_pieces),
    ]
    result: dict[str, dict[str, float]] = {}
    for name, cost, tokens, pieces in rows:
        result[name] = {"cpu_seconds": cost, "tokens": tokens, "tokens_per_word": tokens / words}
        mixed_pieces = find_mixed_pieces({piece for piece in pieces if not piece.startswith("<")})
        print(
            f"{name:<14} {cost:6.1f} s CPU time, {tokens:,} tokens, {tokens / words:.4f} per word, "
            f"{len(mixed_pieces)} pieces join letters with digits or punctuation {sorted(mixed_pieces)[:5]}"
        )
    shared_share = len(our_pieces & their_pieces) / len(our_pieces)
    print(f"{shared_share:.1%} of our {len(our_pieces):,} pieces are also in SentencePiece's vocabulary")
    for title, pieces in (("only ours", our_pieces - their_pieces), ("only theirs", their_pieces - our_pieces)):
        print(f"{title}: {' '.join(sorted(pieces)[:: max(len(pieces) // 20, 1)])}")
    common.write_result(result, options.out)


if __name__ == "__main__":
    main()
