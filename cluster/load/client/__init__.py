"""Streamed answers of any OpenAI-compatible endpoint, read at little cost per token, with bounds on everything."""
