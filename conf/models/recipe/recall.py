"""Recall texts: facts such as "The code of Tosk is 9037." between filler sentences, and questions about them.

Standard library only and no import from its neighbours, so that tests can load this file by its path. The names
and codes that `recall_prompt` and `raw_prompt` use are held out: no training document has them.
"""

import random
import zlib
from dataclasses import dataclass

Message = dict[str, str]
PLACINGS = ("user", "system", "earlier", "several")

ONSETS = "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr kr pl qu sh sk st th tr".split()
VOWELS = "a e i o u a e i o ai ea ou y".split()
CODAS = "b ck d g k l ll m n nd nt r rk s sk st t th v x".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"

FIRST_NAMES = (
    "Anna Ben Carla David Emma Felix Greta Hugo Ida Jonas Karin Leo Maria Nina Oscar Paul Rosa Simon Tina Viktor "
    "Alice Bob Clara Daniel Eva Frank Grace Henry Iris Jack Kate Lucas Mia Noah Olivia Peter Ruth Sam Tom Walter "
    "Ahmed Bella Chen Diego Elena Fatima Goran Hana Ivan Julia Kofi Lena Marco Nadia Omar Priya Ravi Sofia Tariq Yuki"
).split()
COLOURS = "red blue green yellow black white grey brown orange purple pink golden silver".split()
THINGS = (
    "door box house garden tower bridge river lamp car boat train room gate key book cup table chair window tree fox "
    "bear lion horse cat dog bird fish owl wolf shop school office station market castle engine server printer"
).split()
PLACES = "in the garden|near the river|on the hill|by the old bridge|at the market|in the kitchen|behind the house"
PEOPLE = "The baker|A farmer|The teacher|An old man|The young girl|My neighbour|The driver|A sailor|The doctor"
DEEDS = (
    "walked slowly|was reading a book|sat under a tree|waited for the bus|made some tea|counted {n} birds|"
    "found {n} coins|sang a quiet song|opened a window|bought {n} apples|wrote a long letter|talked to a friend"
)
OPENINGS = "Today|In the morning|Last week|At noon|Every evening|On Monday|In winter|After lunch|Yesterday"
SCENES = (
    "the wind was cold|it rained for {n} hours|the streets were empty|the sun was bright|the train was late|"
    "the shops were closed|all the lights were on|{n} children were playing|the snow was deep|the sky was clear"
)
ATTRIBUTES = ("number", "key", "password")

FACT_FORMS = (
    "The {a} of {n} is {v}.",
    "The {a} for {n} is {v}.",
    "Remember that the {a} of {n} is {v}.",
    "Please note: the {a} of {n} is {v}.",
)
FACT_WEIGHTS = (30, 6, 5, 5)
LIST_FORMS = ("{n}: {v}", "- {n}: {v}")
QUESTION_FORMS = (
    "What is the {a} of {n}?",
    "What's the {a} of {n}?",
    "What is the {a} for {n}?",
    "Tell me the {a} of {n}.",
    "Please give me the {a} of {n}.",
    "And the {a} of {n}?",
)
QUESTION_WEIGHTS = (30, 6, 6, 6, 4, 6)
INTRODUCTIONS = (
    "Here are some {a}s.",
    "Please remember these {a}s.",
    "Read this text and answer the question.",
    "I will tell you some {a}s.",
    "Remember the following.",
)
SYSTEMS = (
    "You are Baton, a helpful assistant.",
    "You are a helpful assistant.",
    "You are Baton. Answer in one short sentence.",
    "Answer the questions of the user.",
)
ACKNOWLEDGEMENTS = ("I will remember that.", "Thank you, I will remember that.", "OK.")


@dataclass(frozen=True)
class Fact:
    attribute: str
    name: str
    value: str

    def say(self, form: str) -> str:
        text = form.format(a=self.attribute, n=self.name, v=self.value)
        return text if form.startswith("{n}:") else text[:1].upper() + text[1:]

    @property
    def answer(self) -> str:
        return f"The {self.attribute} of {self.name} is {self.value}."


def held_out(text: str) -> bool:
    """Whether a name or code is kept for evaluation: one in eight is, chosen by its checksum."""
    return zlib.crc32(text.encode()) % 8 == 0


def _invented(rng: random.Random) -> str:
    if rng.random() < 0.05:
        name = "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 7)))
    else:
        parts = [rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.choice((1, 2, 2, 3)))]
        name = "".join(parts) + (rng.choice(CODAS) if len(parts) == 1 or rng.random() < 0.6 else "")
    return name.capitalize()


def _ordinary(rng: random.Random) -> str:
    kind = rng.randrange(6)
    if kind == 0:
        return f"the {rng.choice(COLOURS)} {rng.choice(THINGS)}"
    if kind == 1:
        return f"{rng.choice(THINGS)}{rng.choice((' ', '-'))}{rng.randint(1, 99)}"
    if kind == 2:
        return f"{rng.choice(FIRST_NAMES)} {_invented(rng)}"
    if kind == 3:
        return _invented(rng).lower()
    return rng.choice(FIRST_NAMES)


def new_name(rng: random.Random, held: bool = False) -> str:
    """A name that is held out for evaluation (`held`) or not. Held-out names are always invented words."""
    while True:
        name = _invented(rng) if held or rng.random() < 0.85 else _ordinary(rng)
        if held_out(name) == held:
            return name


def new_code(rng: random.Random, held: bool = False, digits: int = 4) -> str:
    while True:
        code = "".join(rng.choice("0123456789") for _ in range(digits))
        if held_out(code) == held:
            return code


def make_facts(rng: random.Random, count: int, held: bool = False) -> list[Fact]:
    """Facts with one attribute, and with different names and values."""
    attribute = "code" if held or rng.random() < 0.9 else rng.choice(ATTRIBUTES)
    digits = 4 if held or rng.random() < 0.9 else rng.choice((2, 3, 6))
    facts: dict[str, Fact] = {}
    while len(facts) < count:
        name = new_name(rng, held)
        value = new_code(rng, held, digits)
        if value not in (fact.value for fact in facts.values()):
            facts.setdefault(name, Fact(attribute, name, value))
    return list(facts.values())


def filler(rng: random.Random, names: list[str]) -> str:
    """A sentence that tells no code; now and then it is about one of the names."""
    deed = rng.choice(DEEDS.split("|")).format(n=rng.randint(2, 60))
    scene = rng.choice(SCENES.split("|")).format(n=rng.randint(2, 60))
    kind = rng.random()
    if kind < 0.4:
        return f"{rng.choice(OPENINGS.split('|'))} {scene}."
    if kind < 0.85 or not names:
        return f"{rng.choice(PEOPLE.split('|'))} {deed} {rng.choice(PLACES.split('|'))}."
    name = rng.choice(names)
    return f"{name[:1].upper()}{name[1:]} {deed} {rng.choice(PLACES.split('|'))}."


def tell(rng: random.Random, facts: list[Fact], fillers: int) -> str:
    """The facts in order, with this number of filler sentences between them."""
    names = [fact.name for fact in facts]
    if not fillers and rng.random() < 0.15:
        form = rng.choice(LIST_FORMS)
        return "\n".join(fact.say(form) for fact in facts)
    mixed = rng.random() < 0.6
    sentences = [fact.say(rng.choices(FACT_FORMS, FACT_WEIGHTS)[0] if mixed else FACT_FORMS[0]) for fact in facts]
    for _ in range(fillers):
        sentences.insert(rng.randint(0, len(sentences)), filler(rng, names))
    return " ".join(sentences)


def question(rng: random.Random, fact: Fact) -> str:
    return fact.say(rng.choices(QUESTION_FORMS, QUESTION_WEIGHTS)[0])


def turns(*contents: str) -> list[Message]:
    """Messages that alternate between user and assistant."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


def place(rng: random.Random, facts: list[Fact], fillers: int, placing: str) -> list[Message]:
    """Messages that tell the facts, up to the place where the first question is asked.

    "user": the last message is a user message that waits for a question to be appended to it.
    "system": the facts are in the system prompt. "earlier": in one earlier user turn. "several": in several.
    """
    if placing == "user":
        return turns(f"{rng.choice(INTRODUCTIONS).format(a=facts[0].attribute)} {tell(rng, facts, fillers)}")
    if placing == "system":
        return [{"role": "system", "content": f"{rng.choice(SYSTEMS)} {tell(rng, facts, fillers)}"}]
    parts = 1 if placing == "earlier" else min(len(facts), rng.randint(2, 4))
    contents: list[str] = []
    for i in range(parts):
        share = facts[i * len(facts) // parts : (i + 1) * len(facts) // parts]
        contents += [tell(rng, share, fillers // parts), rng.choice(ACKNOWLEDGEMENTS)]
    return turns(*contents)


def ask(messages: list[Message], text: str) -> list[Message]:
    """The messages with this question asked: inside the last user message, or as a turn of its own."""
    if messages[-1]["role"] == "user":
        told = messages[-1]["content"]
        return [*messages[:-1], {"role": "user", "content": f"{told}\n{text}"}]
    return [*messages, {"role": "user", "content": text}]


def recall_prompt(
    seed: int, num_names: int = 8, fillers: int = 10, placing: str = "user", index: int | None = None
) -> tuple[list[Message], str]:
    """A held-out chat prompt, and the code that its answer must contain.

    `placing` is one of PLACINGS. `index` picks the name that is asked about (0 is the one told first); without it,
    the seed does. Other prompts of the same seed, sizes and placing differ only in the question.
    """
    rng = random.Random(f"recall {seed} {num_names} {fillers} {placing}")
    facts = make_facts(rng, num_names, held=True)
    messages = place(rng, facts, fillers, placing)
    fact = facts[rng.randrange(num_names) if index is None else index]
    return ask(messages, f"What is the code of {fact.name}?"), fact.value


def raw_prompt(seed: int, num_names: int = 8, fillers: int = 10, index: int | None = None) -> tuple[str, str]:
    """A held-out completion prompt without chat template, and the code with which it must go on."""
    rng = random.Random(f"raw {seed} {num_names} {fillers}")
    facts = make_facts(rng, num_names, held=True)
    text = tell(rng, facts, fillers)
    fact = facts[rng.randrange(num_names) if index is None else index]
    separator = "\n" if "\n" in text else " "
    return f"{text}{separator}The code of {fact.name} is", fact.value


def is_right(answer: str, code: str) -> bool:
    """Whether the answer tells this code and no other number."""
    words = answer.replace(".", " ").replace(",", " ").split()
    return [word for word in words if word.isdigit()] == [code]
