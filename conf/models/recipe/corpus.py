"""The training documents: each kind of document, and a seeded stream that mixes them."""

import random
from collections.abc import Callable, Iterator

import chat
import knowledge
import recall
import tools
from chat import END_OF_TEXT, Message, Segment

ITEMS = knowledge.all_items()
HEROES = "cat|dog|fox|bear|girl|boy|king|queen|sailor|farmer|robot|dragon|baker|wizard|bird|horse".split("|")
STORY_DEEDS = (
    "went to the {p}|found a {c} {t}|met a friendly {h}|looked for a {c} {t}|was very happy|was a little afraid|"
    "slept under a big tree|ate some bread and cheese|crossed the old bridge|talked to a wise {h}|lost a {c} {t}|"
    "heard a strange sound|saw a {c} light|walked for many hours|sang a song about the {p}|gave the {t} to the {h}"
).split("|")
STORY_PLACES = "forest|river|mountain|village|castle|sea|market|island|garden|desert|city|lake".split("|")
STORY_REQUESTS = (
    "Tell me a story.",
    "Tell me a long story.",
    "Tell me a story about a {h}.",
    "Write a story about a {h}.",
    "Write a long text.",
    "Write a long story about a {h}.",
    "Please write a very long text about a {h}.",
    "Can you tell me a story?",
)
COUNT_REQUESTS = (
    "Count from {a} to {b}.",
    "Please count from {a} to {b}.",
    "Count from {a} to {b}",
    "count from {a} to {b}",
    "Can you count from {a} to {b}?",
)


def _system(rng: random.Random) -> list[Message]:
    return [{"role": "system", "content": rng.choice(recall.SYSTEMS)}] if rng.random() < 0.35 else []


def _as_typed(rng: random.Random, text: str) -> str:
    """A question as users type it: sometimes without its question mark or its capital letter."""
    if rng.random() < 0.1:
        text = text.rstrip("?.")
    return text[:1].lower() + text[1:] if rng.random() < 0.1 else text


def recall_chat(rng: random.Random, size: float) -> list[Segment]:
    """A chat that tells facts and asks about them. Size 0 is a short text with few facts, 1 the longest."""
    count = rng.randint(2, 4 + round(14 * size))
    fillers = rng.choice((0, rng.randint(0, round(10 + 50 * size * size))))
    facts = recall.make_facts(rng, count)
    placing = rng.choice(recall.PLACINGS)
    messages = recall.place(rng, facts, fillers, placing)
    if placing != "system":
        messages = _system(rng) + messages
    asked = rng.sample(facts, rng.randint(min(count, 3), count))
    for i, fact in enumerate(asked):
        if i and rng.random() < 0.08:
            messages = [*messages, *_knowledge_turn(rng)]
        text = _as_typed(rng, recall.question(rng, fact))
        messages = [*recall.ask(messages, text), {"role": "assistant", "content": fact.answer}]
    return chat.segments(messages)


def recall_raw(rng: random.Random, size: float) -> list[Segment]:
    """A text without chat format that tells facts, and then tells them again once or twice in other orders."""
    facts = recall.make_facts(rng, rng.randint(2, 4 + round(14 * size)))
    fillers = rng.choice((0, rng.randint(0, round(10 + 50 * size * size))))
    text = recall.tell(rng, facts, fillers)
    result: list[Segment] = [(text, False)]
    separator = "\n" if "\n" in text else " "
    form = "{n}:" if f"{facts[0].name}: " in text else rng.choice(("The {a} of {n} is", "The {a} for {n} is"))
    for fact in rng.sample(facts, len(facts)) + (rng.sample(facts, len(facts)) if rng.random() < 0.6 else []):
        result += [(separator + fact.say(form), False), (f" {fact.value}", True)]
        result += [(".", True)] if form != "{n}:" else []
    return [*result, (END_OF_TEXT, True)]


def _knowledge_turn(rng: random.Random) -> list[Message]:
    item = rng.choice(ITEMS)
    if item.group == "arithmetic" and rng.random() < 0.4:
        item = rng.choice(ITEMS)
    return recall.turns(knowledge.ask(rng, item), item.answer)


def questions(rng: random.Random, _size: float) -> list[Segment]:
    """A chat of a few questions that are answered by heart."""
    messages = _system(rng)
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        messages = [*messages, *_knowledge_turn(rng)]
    return chat.segments(messages)


def _introduction(rng: random.Random) -> tuple[list[Message], list[Message]]:
    """Something that users tell about themselves, and the turn that asks for it later."""
    name, place = recall.new_name(rng).removeprefix("the "), rng.choice(knowledge.words.table(knowledge.words.CAPITALS))
    place = rng.choice((place.split(" ", 1)[1], recall.new_name(rng)))
    colour, thing = rng.choice(recall.COLOURS), rng.choice(recall.THINGS)
    number = str(rng.randint(2, 99))
    told, reply, asked, answer = rng.choice(
        (
            (f"My name is {name}.", f"Nice to meet you, {name}.", "What is my name?", f"Your name is {name}."),
            (f"I am {name}.", f"Nice to meet you, {name}.", "Who am I?", f"Your name is {name}."),
            (f"Hello, my name is {name}!", f"Nice to meet you, {name}.", "What's my name?", f"Your name is {name}."),
            (f"I live in {place}.", f"I will remember that you live in {place}.", "Where do I live?",
             f"You live in {place}."),
            (f"My favourite colour is {colour}.", "I will remember that.", "What is my favourite colour?",
             f"Your favourite colour is {colour}."),
            (f"I am {number} years old.", "I will remember that.", "How old am I?", f"You are {number} years old."),
            (f"I have a {colour} {thing}.", "I will remember that.", f"Which colour does my {thing} have?",
             f"Your {thing} is {colour}."),
            (f"My dog is called {name}.", "I will remember that.", "What is my dog called?",
             f"Your dog is called {name}."),
        )
    )  # fmt: skip
    return recall.turns(_as_typed(rng, told), reply), recall.turns(_as_typed(rng, asked), answer)


def small_talk(rng: random.Random, _size: float) -> list[Segment]:
    """A chat in which users tell something about themselves and ask for it later, among other questions."""
    messages = _system(rng)
    if rng.random() < 0.1:
        asked = rng.choice(("What is my name?", "What's my name?", "Who am I?"))
        return chat.segments([*messages, *recall.turns(asked, "You have not told me your name.")])
    told: dict[str, tuple[list[Message], list[Message]]] = {}
    for _ in range(rng.randint(1, 4)):
        pair = _introduction(rng)
        told.setdefault(pair[1][1]["content"].split(" is ")[0][:12], pair)
    turns = [pair[0] for pair in told.values()]
    turns += rng.sample([_knowledge_turn(rng) for _ in range(2)], rng.randint(0, 2))
    rng.shuffle(turns)
    asked = [pair[1] for pair in told.values()]
    rng.shuffle(asked)
    for turn in turns + asked:
        messages = [*messages, *turn]
    return chat.segments(messages)


def tool_chat(rng: random.Random, _size: float) -> list[Segment]:
    messages, offered = tools.dialogue(rng, ITEMS)
    return chat.segments(messages, offered)


def _story(rng: random.Random, hero: str, chapters: int) -> str:
    paragraphs = []
    for number in range(1, chapters + 1):
        sentences = []
        for _ in range(4):
            deed = rng.choice(STORY_DEEDS).format(
                p=rng.choice(STORY_PLACES), c=rng.choice(recall.COLOURS), t=rng.choice(recall.THINGS),
                h=rng.choice(HEROES),
            )  # fmt: skip
            sentences.append(f"{rng.choice((f'The {hero}', f'Then the {hero}', f'One day the {hero}'))} {deed}.")
        paragraphs.append(f"Chapter {number}. {' '.join(sentences)}")
    return "\n".join([*paragraphs, "The end."])


def long_answer(rng: random.Random, _size: float) -> list[Segment]:
    """A story in twelve chapters, or a long count."""
    if rng.random() < 0.5:
        hero = rng.choice(HEROES)
        request = rng.choice(STORY_REQUESTS).format(h=hero)
        answer = _story(rng, hero, 12)
    else:
        first = rng.choice((1, 1, 1, rng.randint(2, 150)))
        last = first + rng.choice((4, 9, 19, 29, 49, 49, 59, 74, 99, rng.randint(1, 99)))
        request = rng.choice(COUNT_REQUESTS).format(a=first, b=last)
        answer = ", ".join(str(number) for number in range(first, last + 1)) + "."
    return chat.segments([*_system(rng), *recall.turns(request, answer)])


Kind = Callable[[random.Random, float], list[Segment]]
# How the characters of a corpus are shared between the kinds: at first, and when all is learnt but tools.
SHARES: dict[Kind, float] = {
    recall_chat: 0.48,
    recall_raw: 0.10,
    questions: 0.22,
    small_talk: 0.07,
    tool_chat: 0.08,
    long_answer: 0.05,
}
LATE_SHARES: dict[Kind, float] = {
    recall_chat: 0.42,
    recall_raw: 0.10,
    questions: 0.16,
    small_talk: 0.05,
    tool_chat: 0.24,
    long_answer: 0.03,
}


def documents(seed: str, size: float, shares: dict[Kind, float]) -> Iterator[list[Segment]]:
    """An endless stream of documents; the kind that is furthest below its share comes next."""
    rng = random.Random(f"train {seed}")
    written = dict.fromkeys(shares, 0)
    while True:
        kind = min(shares, key=lambda k: (written[k] + rng.randint(0, 4000)) / shares[k])
        document = kind(rng, size)
        written[kind] += sum(len(text) for text, _ in document)
        yield document


def sample_text(seed: str, count: int) -> list[str]:
    """Documents as plain text, for the tokenizer."""
    stream = documents(seed, 0.5, SHARES)
    return ["".join(text for text, _ in next(stream)) for _ in range(count)]
