"""Prompts of a given number of tokens, for a model whose tokenizer nobody has told."""
