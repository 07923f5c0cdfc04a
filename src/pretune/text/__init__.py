"""Text to tokens: corpora, cleaning, sentences, tokenizers and templates."""
