"""A text as it is put into the prompt of a guard, so that it cannot pose as a part of the prompt. Pure.

Guards read their own prompt, and their tokenizers make special tokens of certain words of it. A text could end its own
turn with such a word, add turns of others, and add the answer "safe". So no token of the text begins with an angle or
square bracket that a letter or sign follows, and no line of a text with several lines begins with its own words.
"""

import re

_OPENING = re.compile(r"([<\uff1c\ufe64\[\uff3b])(?=\S)")
"""What special tokens begin with, also after Unicode's compatibility normalisation."""
_LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
QUOTE = "> "
"""What the lines of a text with several lines begin with, as in an e-mail."""


def quoted(text: str) -> str:
    """A text of one line without brackets is not changed."""
    opened = _OPENING.sub(r"\1 ", well_formed(text))
    lines = _LINE_BREAK.split(opened)
    return opened if len(lines) == 1 else "\n".join(QUOTE + line for line in lines)


def well_formed(text: str) -> str:
    """The text with question marks for lone surrogates, which no JSON of a guard can contain."""
    return text.encode("utf-8", "replace").decode()
