"""Tool documents: functions, questions that need one of them, the calls, their results and the final answers."""

import json
import random
from collections.abc import Callable
from typing import Any

import knowledge
import recall
import words
from chat import Message

Arguments = dict[str, Any]
Tool = dict[str, Any]
# A use of a tool: the tool, the user's question, the arguments of the call, the tool's result, the answer.
Use = tuple[Tool, str, Arguments, str, str]

CONDITIONS = "sunny cloudy rainy windy snowy foggy clear stormy".split()


def make_tool(name: str, description: str, parameters: dict[str, str]) -> Tool:
    """A function in the format of the OpenAI API, all of whose parameters are required."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _city(rng: random.Random, held: bool) -> str:
    if rng.random() < 0.2:
        return recall.new_name(rng, held)
    return rng.choice(words.pairs(words.CAPITALS))[1]


def _weather(rng: random.Random, held: bool) -> Use:
    tool = make_tool("get_weather", "Get the current weather of a city.", {"city": "string"})
    city, sky, degrees = _city(rng, held), rng.choice(CONDITIONS), rng.randint(-20, 45)
    asked = rng.choice(("What is the weather in {}?", "How is the weather in {}?", "Tell me the weather in {}."))
    if rng.random() < 0.5:
        result = json.dumps({"temperature": degrees, "condition": sky})
        return (
            tool,
            asked.format(city),
            {"city": city},
            result,
            f"The weather in {city} is {sky} with {degrees} degrees.",
        )
    return tool, asked.format(city), {"city": city}, sky, f"The weather in {city} is {sky}."


def _time(rng: random.Random, held: bool) -> Use:
    tool = make_tool("get_time", "Get the current time of a city.", {"city": "string"})
    city, clock = _city(rng, held), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    asked = rng.choice(("What time is it in {}?", "What is the time in {}?", "Tell me the time in {}."))
    result = rng.choice((clock, json.dumps({"time": clock})))
    return tool, asked.format(city), {"city": city}, result, f"The time in {city} is {clock}."


def _sum(rng: random.Random, held: bool) -> Use:
    name, word, noun = rng.choice((("add", "plus", "sum"), ("multiply", "times", "product")))
    tool = make_tool(name, f"Compute the {noun} of two numbers.", {"a": "number", "b": "number"})
    a, b = (rng.randint(0, 10 ** rng.randint(1, 4)) for _ in range(2))
    value = a + b if name == "add" else a * b
    asked = rng.choice(("What is {} {} {}?", "How much is {} {} {}?", "Compute {} {} {}.")).format(a, word, b)
    if rng.random() < 0.25:
        asked = f"{name.capitalize()} {a} and {b}."
    result = rng.choice((str(value), json.dumps({"result": value})))
    return tool, asked, {"a": a, "b": b}, result, f"The {noun} of {a} and {b} is {value}."


def _code(rng: random.Random, held: bool) -> Use:
    tool = make_tool("lookup_code", "Look up the code of a name.", {"name": "string"})
    name, code = recall.new_name(rng, held), recall.new_code(rng, held)
    asked = rng.choice(("What is the code of {}?", "Look up the code of {}.", "Find the code of {}.")).format(name)
    result = rng.choice((code, json.dumps({"code": code})))
    return tool, asked, {"name": name}, result, f"The code of {name} is {code}."


MAKERS: tuple[Callable[[random.Random, bool], Use], ...] = (_weather, _time, _sum, _code)


def _uses(rng: random.Random, held: bool) -> list[Use]:
    """Uses of one to four different tools. The dialogue calls the first one."""
    uses: dict[str, Use] = {}
    for _ in range(rng.randint(1, 4)):
        use = rng.choice(MAKERS)(rng, held)
        uses.setdefault(use[0]["function"]["name"], use)
    return list(uses.values())


def _shuffled_tools(rng: random.Random, uses: list[Use]) -> list[Tool]:
    tools = [use[0] for use in uses]
    rng.shuffle(tools)
    return tools


def _call(name: str, arguments: Arguments) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def dialogue(rng: random.Random, items: list[knowledge.Item]) -> tuple[list[Message], list[Tool]]:
    """A training dialogue with tools: questions that need them, and now and then one that does not."""
    uses = _uses(rng, held=False)
    system = [{"role": "system", "content": rng.choice(recall.SYSTEMS)}] if rng.random() < 0.4 else []
    messages: list[Message] = system
    for tool, asked, arguments, result, answer in uses[: rng.randint(1, 3)]:
        if rng.random() < 0.2:
            item = rng.choice([item for item in items if item.group not in ("arithmetic", "unknown")])
            messages = [*messages, *recall.turns(knowledge.ask(rng, item), item.answer)]
        response = {"role": "tool", "content": result}
        call = _call(tool["function"]["name"], arguments)
        messages = [*messages, {"role": "user", "content": asked}, call, response]
        messages = [*messages, {"role": "assistant", "content": answer}]
    return messages, _shuffled_tools(rng, uses)


def tool_prompt(seed: int) -> tuple[list[Message], list[Tool], tuple[str, Arguments], Message, str]:
    """A held-out prompt with tools, the call it needs, the tool's response, and the answer that follows it."""
    rng = random.Random(f"tools {seed}")
    uses = _uses(rng, held=True)
    tool, asked, arguments, result, answer = uses[0]
    call = (tool["function"]["name"], arguments)
    response = {"role": "tool", "content": result}
    return [{"role": "user", "content": asked}], _shuffled_tools(rng, uses), call, response, answer


def call_message(call: tuple[str, Arguments]) -> Message:
    """The assistant message that makes this call."""
    return _call(*call)
