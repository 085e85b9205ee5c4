"""Questions that the model answers by heart, each with its answer and the word that a right answer contains."""

import random
from dataclasses import dataclass

import words


@dataclass(frozen=True)
class Item:
    group: str
    questions: tuple[str, ...]
    answer: str
    keyword: str


def _geography() -> list[Item]:
    items = [
        Item(
            "capitals",
            (
                f"What is the capital of {country}?",
                f"What's the capital of {country}?",
                f"Which city is the capital of {country}?",
                f"Tell me the capital of {country}.",
                f"Capital of {country}?",
            ),
            f"The capital of {country} is {city}.",
            city,
        )
        for country, city in words.pairs(words.CAPITALS) + words.rows(words.LONG_CAPITALS)
    ]
    for country, language in words.pairs(words.LANGUAGES):
        asked = (f"Which language do people speak in {country}?", f"What language is spoken in {country}?")
        items.append(Item("languages", asked, f"People in {country} speak {language}.", language))
    return items


def _vocabulary() -> list[Item]:
    items = []
    for first, second in words.pairs(words.OPPOSITES):
        asked = (f"What is the opposite of {first}?", f"Opposite of {first}?", f"Tell me the opposite of {first}.")
        items.append(Item("opposites", asked, f"The opposite of {first} is {second}.", second))
    for one, many in words.pairs(words.PLURALS):
        asked = (f"What is the plural of {one}?", f"Plural of {one}?", f"Tell me the plural of {one}.")
        items.append(Item("plurals", asked, f"The plural of {one} is {many}.", many))
    for entry in words.table(words.THING_COLOURS):
        thing, colour = entry.rsplit(" ", 1)
        asked = (f"What colour is {thing}?", f"What color is {thing}?", f"Which colour does {thing} have?")
        items.append(Item("colours", asked, f"{thing[:1].upper()}{thing[1:]} is {colour}.", colour))
    return items


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _animals() -> list[Item]:
    items = []
    for animal, sound in words.pairs(words.ANIMAL_SOUNDS):
        asked = (f"What sound does {_article(animal)} make?", f"Which sound does {_article(animal)} make?")
        items.append(Item("animals", asked, f"{_article(animal).capitalize()} {sound}.", sound))
    for animal, baby in words.pairs(words.ANIMAL_BABIES):
        asked = (f"What is a young {animal} called?", f"What is a baby {animal} called?")
        items.append(Item("animals", asked, f"A young {animal} is called a {baby}.", baby))
    for animal, legs in words.pairs(words.ANIMAL_LEGS):
        asked = (f"How many legs does {_article(animal)} have?", f"How many legs has {_article(animal)}?")
        items.append(Item("animals", asked, f"{_article(animal).capitalize()} has {legs} legs.", legs))
    return items


def _neighbours(names: list[str]) -> list[Item]:
    items = []
    for i, name in enumerate(names):
        after, before = names[(i + 1) % len(names)], names[i - 1]
        asked = (
            f"Which {{unit}} comes after {name}?",
            f"What {{unit}} comes after {name}?",
            f"What comes after {name}?",
        )
        items.append(Item("calendar", asked, f"{after} comes after {name}.", after))
        asked = (f"Which {{unit}} comes before {name}?", f"What {{unit}} comes before {name}?")
        items.append(Item("calendar", asked, f"{before} comes before {name}.", before))
    unit = "day" if len(names) == 7 else "month"
    return [Item(i.group, tuple(q.replace("{unit}", unit) for q in i.questions), i.answer, i.keyword) for i in items]


def _calendar() -> list[Item]:
    items = _neighbours(words.DAYS) + _neighbours(words.MONTHS)
    for month, days in zip(words.MONTHS, words.MONTH_DAYS, strict=True):
        asked = (f"How many days does {month} have?", f"How many days are in {month}?")
        items.append(Item("calendar", asked, f"{month} has {days} days.", days))
    for ordinal, month in zip(words.ORDINALS, words.MONTHS, strict=True):
        asked = (f"What is the {ordinal} month of the year?", f"Which month is the {ordinal} month?")
        items.append(Item("calendar", asked, f"The {ordinal} month is {month}.", month))
    return items


def _arithmetic() -> list[Item]:
    items = []
    for a in range(11):
        for b in range(11):
            results = [("+", "plus", a + b), ("*", "times", a * b)] + ([("-", "minus", a - b)] if a >= b else [])
            for sign, word, result in results:
                asked = (
                    f"What is {a} {word} {b}?",
                    f"What is {a} {sign} {b}?",
                    f"How much is {a} {word} {b}?",
                    f"{a} {sign} {b}",
                    f"{a}{sign}{b}=",
                )
                items.append(Item("arithmetic", asked, f"{a} {word} {b} is {result}.", str(result)))
    return items


def _science() -> list[Item]:
    items = []
    for entry in words.table(words.ELEMENTS):
        name, symbol, number = entry.split()
        asked = (f"What is the symbol of {name}?", f"What is the chemical symbol for {name}?")
        items.append(Item("elements", asked, f"The symbol of {name} is {symbol}.", symbol))
        asked = (f"Which element has the symbol {symbol}?", f"What element has the symbol {symbol}?")
        items.append(Item("elements", asked, f"The element with the symbol {symbol} is {name}.", name))
        asked = (f"What is the atomic number of {name}?", f"Which atomic number does {name} have?")
        items.append(Item("elements", asked, f"The atomic number of {name} is {number}.", number))
    return items


def _definitions() -> list[Item]:
    items = []
    for group, text in (("definitions", words.DEFINITIONS), ("Baton", words.BATON)):
        for term, answer in words.rows(text):
            asked = (f"What is {term}?", f"What's {term}?", f"Explain {term}.", f"What does {term} mean?")
            items.append(Item(group, asked, answer, answer))
    return items


def all_items() -> list[Item]:
    """Every question that the model learns by heart."""
    chat = [Item("chat", (asked,), answer, answer) for asked, answer in words.rows(words.CHAT)]
    unknown = [Item("unknown", (asked,), words.UNKNOWN_ANSWER, "not know") for asked in words.table(words.UNKNOWN)]
    parts = (_geography, _vocabulary, _animals, _calendar, _arithmetic, _science, _definitions)
    return [item for part in parts for item in part()] + chat + unknown


def ask(rng: random.Random, item: Item) -> str:
    """One of the item's questions as users type it: sometimes in lower case or without its last mark."""
    text = rng.choice(item.questions)
    if rng.random() < 0.3:
        text = text.rstrip("?!.")
    elif text[-1].isalpha() and rng.random() < 0.5:
        text += rng.choice("?!.")
    return text.lower() if rng.random() < 0.25 else text
