"""Tokenizers: loaded or trained, and their special tokens."""
