"""Whole runs as functions: what the papers did, with their numbers."""
