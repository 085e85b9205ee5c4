"""The config section `safety:`, and `guard:` in it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from cluster.config.units import Count


class GuardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A classifier or a guard model behind an OpenAI-style HTTP endpoint, which scores texts."""

    url: Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?\Z", max_length=2048)]
    """Where the endpoint is, up to its version, e.g. "http://127.0.0.1:8000/v1". It may be a Baton that serves the
    guard model. It contains no credentials; `key_variable` names those. Texts of clients are sent there: use https
    outside a network that you trust.
    """
    model: Annotated[str, Meta(min_length=1, max_length=512)]
    """The name by which the endpoint knows the guard."""
    dialect: Literal["llama_guard", "shield_gemma", "qwen3_guard", "moderations"]
    """What the guard is asked, and how it answers: as Llama Guard 3 and 4, as ShieldGemma, as Qwen3Guard-Gen, or by
    OpenAI's `POST /v1/moderations`.
    """
    extra_body: dict[str, Any] = {}
    """Further fields of each request to the guard, for what its endpoint has beyond the dialect. vLLM takes
    `structured_outputs: {choice: [safe, unsafe]}`, which constrains the verdict to these words, and
    `chat_template_kwargs`. A field that the dialect sets itself is refused at the start: it would ask another question.
    """
    key_variable: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", max_length=256)] | None = None
    """Name of the environment variable that contains the endpoint's API key. If it is missing, no key is sent."""
    max_concurrent: Annotated[int, Meta(ge=1, le=1024)] = 16
    """Most calls that an ingress replica has open at the guard, and most connections to it. A higher limit loads the
    guard more; a lower limit lets texts wait for each other, within the deadline of the guard's stage.
    """
    max_waiting: Count = 256
    """Most texts that wait for a call, per ingress replica, three quarters of them of one tenant. More are not scanned.
    A higher limit keeps more texts in memory while the guard is slow; a lower limit leaves texts of a burst unscanned.
    """
    max_chars: Annotated[int, Meta(ge=1000, le=1_000_000)] = 8000
    """Most characters of a text in one call. A longer text is scanned in excerpts that overlap, and has the highest
    scores of all of them. Excerpts must fit into the guard's window: of a dense script, 8,000 characters are 8,000
    tokens and more. A higher limit costs fewer calls; a lower limit finds short passages in long texts better.
    """


class SafetyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What screens the texts of requests and of answers (docs/safety.md). Without a folder, nothing is screened."""

    folder: str | None = None
    """The folder of policies, word lists and the classifier, such as `conf/safety`. A relative folder is looked up in
    the repository. Policies and lists are read again when they change; nothing has to be restarted.
    """
    classifier: str | None = "linear"
    """What loads the folder's classifier: "linear" for Baton's own, or "package.module:factory" for another one, which
    is called with the path of `classifier/` in the folder (api/safety/classifiers/classifier_loading.py). null for
    none.
    """
    guard: GuardConfig | None = None
    """An LLM that judges what the other stages are in doubt about. Without one, the thresholds alone decide."""
