"""What the dialogs are about. Pure."""

import random

COUNTRIES = ("France", "Italy", "Spain", "Norway", "Japan", "Kenya", "Peru", "Canada", "Egypt", "Poland")
NAMES = ("Tosk", "Mela", "Varn", "Dipo", "Kesh", "Lumo", "Rant", "Sabi")


def instructions(chance: random.Random) -> str:
    """Other ones for each dialog, of the same length: none finds the prompts of another in the cache."""
    return f"{chance.randrange(10**8):08d}. Answer briefly. Say so where you do not know."


def question(chance: random.Random, number: int) -> str:
    told = f"The code of {NAMES[number % len(NAMES)]} is {chance.randrange(10**4):04d}."
    return f"{told} What is the capital of {COUNTRIES[number % len(COUNTRIES)]}?"


def wish(chance: random.Random, number: int) -> str:
    """A question with a long answer."""
    return f"The code of {NAMES[number % len(NAMES)]} is {chance.randrange(10**4):04d}. Tell me a story."
