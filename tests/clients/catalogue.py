"""The clients that are tried against a running service, and where each has its pins and its driver."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NODE = FOLDER / "node" / "requirements.txt"
"""Pins the Node.js that JavaScript clients run on, so that none of the machine's is needed."""
_DECLARED = re.compile(r'\bflow\(\s*"([^"]+)"')


@dataclass(frozen=True)
class Client:
    """A client program or library of somebody else."""

    name: str
    """As `make clients ONLY=` has it. Its folder has underscores in place of the dashes."""
    title: str
    packages: tuple[str, ...]
    """Those whose versions are told to readers. The first one is the client itself."""
    setting: str
    """How a user points it at Baton."""
    left_out: tuple[str, ...] = ()
    """What it or Baton cannot do, so that no flow tries it: whole sentences."""

    @property
    def folder(self) -> Path:
        return FOLDER / self.name.replace("-", "_")

    @property
    def is_javascript(self) -> bool:
        return self.name.endswith("-js")

    @property
    def driver(self) -> Path:
        return self.folder / ("driver.mjs" if self.is_javascript else "driver.py")

    @property
    def pins(self) -> tuple[Path, ...]:
        """The files that say what is installed for it, to the exact version of each package."""
        if self.is_javascript:
            return (self.folder / "package.json", self.folder / "package-lock.json", NODE)
        return (self.folder / "requirements.txt",)

    @cached_property
    def flows(self) -> tuple[str, ...]:
        """The flows that its driver declares, in their order."""
        return tuple(_DECLARED.findall(self.driver.read_text()))

    @cached_property
    def versions(self) -> dict[str, str]:
        """The pinned version of each of its packages."""
        pinned = dict(self._pinned())
        return {package: pinned[package] for package in self.packages}

    def _pinned(self) -> Iterator[tuple[str, str]]:
        if self.is_javascript:
            yield from json.loads(self.pins[0].read_text())["dependencies"].items()
            return
        for line in self.pins[0].read_text().splitlines():
            name, _, version = line.partition("==")
            yield name, version


CLIENTS = (
    Client(
        "openai-python",
        "OpenAI's client for Python",
        ("openai",),
        '`OpenAI(base_url="http://localhost:8000/v1")`, or `OPENAI_BASE_URL`',
        ("`client.embeddings`, `images`, `audio`, `files`, `batches` and `vector_stores` answer 404.",),
    ),
    Client(
        "openai-js",
        "OpenAI's client for JavaScript",
        ("openai",),
        '`new OpenAI({baseURL: "http://localhost:8000/v1"})`, or `OPENAI_BASE_URL`',
        ("As with OpenAI's client for Python.",),
    ),
    Client(
        "anthropic-python",
        "Anthropic's client for Python",
        ("anthropic",),
        '`Anthropic(base_url="http://localhost:8000")`, or `ANTHROPIC_BASE_URL`',
        ("`client.models` gets OpenAI's shape, and there are no `client.messages.batches`.",),
    ),
    Client(
        "anthropic-js",
        "Anthropic's client for JavaScript",
        ("@anthropic-ai/sdk",),
        '`new Anthropic({baseURL: "http://localhost:8000"})`, or `ANTHROPIC_BASE_URL`',
        ("As with Anthropic's client for Python.",),
    ),
    Client(
        "langchain-python",
        "LangChain",
        ("langchain", "langchain-openai", "langchain-anthropic"),
        '`ChatOpenAI(base_url="http://localhost:8000/v1")`, `ChatAnthropic(base_url="http://localhost:8000")`',
    ),
    Client(
        "llamaindex-python",
        "LlamaIndex",
        ("llama-index-llms-openai-like", "llama-index-llms-openai"),
        '`OpenAILike(api_base="http://localhost:8000/v1", is_chat_model=True, is_function_calling_model=True)`',
    ),
    Client(
        "litellm-python",
        "LiteLLM",
        ("litellm",),
        '`completion("openai/<model>", api_base="http://localhost:8000/v1")`; `"anthropic/<model>"` without `/v1`',
    ),
    Client(
        "openai-agents-python",
        "OpenAI Agents SDK for Python",
        ("openai-agents", "openai"),
        '`OpenAIResponsesModel(model, openai_client=AsyncOpenAI(base_url="http://localhost:8000/v1"))`',
    ),
    Client(
        "instructor-python",
        "Instructor",
        ("instructor", "openai", "anthropic"),
        "`instructor.from_openai(OpenAI(base_url=...))`, `instructor.from_anthropic(Anthropic(base_url=...))`",
    ),
    Client(
        "ai-sdk-js",
        "Vercel's AI SDK",
        ("ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai", "@ai-sdk/anthropic"),
        '`createOpenAICompatible({baseURL: "http://localhost:8000/v1"})`, `createOpenAI` likewise; '
        '`createAnthropic({baseURL: "http://localhost:8000/v1"})`',
        (
            "Structured output over `messages` calls a tool without `strict`. Nothing binds its arguments to the "
            "schema, and the demo model does not fill it.",
        ),
    ),
)

QUICK = ("openai-js", "anthropic-js", "ai-sdk-js")
"""Clients that `make test` tries: they are installed in seconds, and nothing else in the tests is written in
JavaScript. `make clients` tries all.
"""


def client_named(name: str) -> Client:
    """Raises ValueError if there is none."""
    for client in CLIENTS:
        if client.name == name:
            return client
    raise ValueError(f"there is no client {name!r}; there are {', '.join(client.name for client in CLIENTS)}")
