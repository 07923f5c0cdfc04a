"""Runs as functions: prepare, pretrain, finetune, evaluate, with the defaults of the papers."""
