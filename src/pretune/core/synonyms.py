"""Names that papers and other libraries use for our settings, used for suggestions in errors."""

SYNONYMS: dict[str, str] = {
    "width": "hidden_size d_model n_embd dim embed_dim model_dim",
    "depth": "num_hidden_layers num_layers n_layer n_layers layers",
    "heads": "num_attention_heads num_heads n_head n_heads",
    "hidden": "intermediate_size d_ff ffn_dim",
    "vocab": "vocab_size n_vocab",
    "max_length": "max_seq_length max_seq_len max_len seq_len seq_length sequence_length block_size",
    "lr": "learning_rate",
    "batch": "batch_size train_batch_size per_device_train_batch_size",
    "batch_tokens": "batch_size train_batch_size per_device_train_batch_size",
    "epochs": "num_epochs num_train_epochs n_epochs",
    "steps": "max_steps num_steps train_steps",
    "warmup": "warmup_steps warmup_ratio num_warmup_steps",
    "clip": "max_grad_norm grad_clip gradient_clip gradient_clipping",
    "precision": "fp16 bf16 amp mixed_precision",
    "eval_every": "eval_steps eval_interval",
    "checkpoint_every": "save_steps save_interval",
    "log_every": "logging_steps log_interval",
    "workers": "num_workers dataloader_num_workers",
    "activation_checkpointing": "gradient_checkpointing",
    "max_checkpoints": "save_total_limit keep_checkpoint_max",
    "causal": "clm lm language_modeling autoregressive",
    "masked": "mlm masked_lm masked_language_modeling cloze",
    "next_sentence": "nsp",
    "sentence_order": "sop",
    "replaced_token": "rtd",
    "permuted": "plm",
    "translation": "tlm",
    "bidirectional": "bilm",
    "frozen": "feature_extraction linear_probe",
}
"""By our name: theirs, separated by spaces."""


def find_synonyms(word: str) -> list[str]:
    """Return our names for a synonym; of a path or an option, the last part counts.

    >>> find_synonyms("train.learning_rate"), find_synonyms("--batch-size"), find_synonyms("lr")
    (['lr'], ['batch', 'batch_tokens'], [])
    """
    last = word[:200].rpartition(".")[2].strip("-").replace("-", "_").lower()
    return [name for name, theirs in SYNONYMS.items() if last in theirs.split()]
