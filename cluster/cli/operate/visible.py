"""Texts of a service, or of its clients, for a terminal. Pure."""

import unicodedata


def visible(text: str) -> str:
    """The text with `?` for each character that controls a terminal, line ends included."""
    return "".join("?" if unicodedata.category(character).startswith("C") else character for character in text)
