"""Parts that several families share: Hugging Face keys, tensor names and training settings."""
