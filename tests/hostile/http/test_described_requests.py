"""Requests that schemathesis makes of the service's own OpenAPI document, right ones and wrong ones: none fails the
server or hangs, every answer is one that the document describes, wrong ones are refused and right ones are not.
"""

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from jsonschema_rs import is_valid
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.core.parameters import ParameterLocation

from api.state.lifecycle import ChatState
from cluster.config.state import StateConfig
from tests.component.app_with_fakes import CHAT, a_client, an_app
from tests.component.fake_engines import FakeEngines
from tests.hostile.sockets.strangers import FUZZ_MINUTES

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

PATIENCE_S = 10.0
"""Longest time until any of these requests is answered, in seconds."""
SENT = ("method", "url", "headers", "params", "json", "data", "content")
"""The parts of a request that schemathesis makes."""
UNAVAILABLE = (503, 529)
EVENT_STREAM = "text/event-stream"
HELLO = [{"role": "user", "content": "Hello"}]
LEFT_OUT = (
    *("allowed_token_ids", "bad_words", "context_management", "conversation", "logit_bias", "moderation"),
    *("output_config", "previous_response_id", "repetition_detection", "response_format", "safety_settings"),
    *("structured_outputs", "text", "thinking", "tool_choice", "tools", "truncate_prompt_tokens"),
)
"""Fields that are null in right bodies: what they may contain is described in part, or differs with the others."""
RIGHT: dict[str, list[Any]] = {
    "model": ["baton-demo"],
    "messages": [HELLO, [*HELLO, {"role": "assistant", "content": "Yes"}, *HELLO]],
    "prompt": ["Hello", [5, 6]],
    "input": ["Hello", HELLO],
    "items": [HELLO],
    "tokens": [[5, 6], []],
    "max_tokens": [4],
    "metadata": [{"a": "b"}, {}, None],
    "n": [1, 2],
    "reasoning": [{}, {"effort": "low"}],
    "service_tier": ["default", "flex", None],
    "system": ["Be brief."],
    **{name: [None] for name in LEFT_OUT},
}
"""Values of fields of bodies in place of what the document says of them, which is wide: most of what follows it is
refused for a reason that no schema can tell.
"""
ALLOWED = {
    r"cannot be set together with|must be after|^Cannot set both|not compatible": "two fields do not fit each other",
    r"must be (greater|non-negative|at least|a positive|a non-negative|a number from)|, got -?[\d.]+|the limit is"
    r"|cannot be greater than": "a number is out of bounds that vLLM's schemas do not tell, or that a model has",
    r"ha(ve|s) NUL characters|cannot contain NUL|without NUL": "no schema has words for what PostgreSQL cannot store",
    r"^include has \d+ entries": "so has a list that is too long (api/wire/limits/bounds.py)",
    r"^page must be the next_page": "a cursor is known to its service alone",
    r"^this service screens nothing": "it has no safety folder",
    r"^input\[0\]\.type must be|\(at prompt\)$": "what RIGHT has is for other routes that have such a field",
    r"was not created in the background": "none of the stored responses was",
}
"""Reasons for which a right request is refused with 400, by what the error says."""
NEVER_FOUND = ("{feedback}", "{event}", "{appeal}")
"""Of these there is none."""
NEVER_RIGHT = {
    "POST /v1/safety/appeals": NEVER_FOUND[1],
    "POST /v1/feedback": "of a response that a test does not know",
    "POST /v1/moderations": "see ALLOWED",
    "POST /v1/responses/{response}/cancel": "no response runs in the background",
}
"""Routes that no request of the document succeeds on, with the reason."""

REFUTED: tuple[Any, ...] = (1.5, {}, ["x"], "x" * 20_000, True, [[]])
"""Values of which most schemas of fields refute some."""

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Schema = dict[str, Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs all examples of hypothesis on one event loop."""
    with asyncio.Runner() as runner:
        yield runner.run


class Service:
    """An ingress over fake engines, its document, and what it has stored."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.document: Schema = {}
        self._stored: dict[str, list[str]] = {"model": ["baton-demo"]}

    @classmethod
    async def start(cls, stack: AsyncExitStack, folder: Path) -> "Service":
        frontend = await FakeEngines().frontend(512, tool_call_parser="hermes")
        stack.push_async_callback(frontend.close)
        state = ChatState(StateConfig(data_dir=str(folder), titles=False))
        stack.push_async_callback(state.close)
        await state.look()
        app = an_app(frontend, state=state, allow_path_header=True)
        stack.push_async_callback(app.state.services.turns.drained, 60)
        service = cls(await stack.enter_async_context(a_client(app)))
        await service._store()
        service.document = (await service.client.get("/openapi.json")).json()
        return service

    def operations(self, *, are_right: bool) -> list[APIOperation]:
        """Those of the document, with its ids in its paths and, for right requests, with right values in its bodies."""
        document = json.loads(json.dumps(self.document))
        schemas = document["components"]["schemas"]
        for name in schemas:
            if are_right and name.endswith("Request"):
                schemas[name] = with_right_values(schemas[name])
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["security"] = []  # no credential is required, and half of the requests would have a wrong one
                if are_right and "requestBody" in operation:
                    operation["requestBody"] = with_right_values(operation["requestBody"])
                for parameter in operation.get("parameters", ()):
                    if parameter["in"] == "path":
                        parameter["schema"] = {"enum": self._stored.get(parameter["name"], ["x_1"])}
        schema = schemathesis.openapi.from_dict(document)
        found = [one.ok() for one in schema.get_all_operations()]
        # what others ask for is deleted last, and the parts of a whole before it
        return sorted(found, key=lambda one: (one.method == "delete", -len(one.path) if one.method == "delete" else 0))

    async def _store(self) -> None:
        made: dict[str, tuple[str, Schema]] = {
            "response": ("/v1/responses", {"model": "baton-demo", "input": "Hello"}),
            "conversation": ("/v1/conversations", {"items": HELLO}),
            "completion": (CHAT, {"model": "baton-demo", "messages": HELLO, "store": True}),
        }
        for name, (path, body) in made.items():
            self._stored[name] = [(await self.client.post(path, json=body)).json()["id"]]
        told = await self.client.get(f"/v1/conversations/{self._stored['conversation'][0]}/items")
        self._stored["item"] = [one["id"] for one in told.json()["data"]]


def with_right_values(node: Any) -> Any:
    if isinstance(node, list):
        return [with_right_values(one) for one in node]
    if not isinstance(node, dict):
        return node
    told = {name: with_right_values(one) for name, one in node.items()}
    if isinstance(fields := told.get("properties"), dict):
        told["properties"] = {name: {"enum": RIGHT[name]} if name in RIGHT else one for name, one in fields.items()}
        told["required"] = sorted({*told.get("required", ()), *(fields.keys() & {"input", "prompt"})})
    return told


def check(operation: APIOperation, case: Case, answer: httpx.Response) -> None:
    """That the document describes the answer."""
    if answer.status_code >= 500:
        is_readiness = operation.path in ("/healthz", "/readyz")
        assert is_readiness or (answer.status_code in UNAVAILABLE and "retry-after" in answer.headers), answer.text
    is_stream = answer.headers["content-type"].startswith(EVENT_STREAM)
    assert answer.headers["x-request-id"] and (answer.content or is_stream)
    if not is_stream:  # frames are compared where all kinds of them are made (tests/conformance)
        operation.validate_response(answer, case=case)


def examples(num_examples: int, *, anew: bool) -> settings:
    """With `anew`, each run has new examples. Without it, all runs have the same examples."""
    return settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=not anew,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def is_wrong(operation: APIOperation, case: Case, request: httpx.Request) -> bool:
    """Whether the document refutes the body, or the value of a parameter. In a query any text is a string, and a name
    that the document does not know is nobody's.
    """
    components = case.meta.components if case.meta is not None else {}
    of_body = components.get(ParameterLocation.BODY)
    if of_body is not None and of_body.mode is GenerationMode.NEGATIVE:
        return True
    texts: dict[str, Any] = {"query": request.url.params, "header": request.headers}
    return any(
        (values := texts[one["in"]].get_list(one["name"])) and all(is_refuted(one["schema"], value) for value in values)
        for one in operation.definition.raw.get("parameters", ())
        if one["in"] in texts
    )


def is_refuted(schema: Schema, text: str) -> bool:
    if "enum" in schema:
        return text not in schema["enum"]
    if schema["type"] == "boolean":
        return text.lower() not in ("true", "false", "1", "0")
    if schema["type"] not in ("integer", "number"):
        return False
    try:
        number = float(text)
    except ValueError:
        return True
    is_kind = math.isfinite(number) and (schema["type"] == "number" or text.isdigit())
    return not is_kind or not schema.get("minimum", -math.inf) <= number <= schema.get("maximum", math.inf)


class Tried:
    """What was answered to the requests of one route."""

    def __init__(self) -> None:
        self.right: Counter[int] = Counter()
        self.wrong: Counter[int] = Counter()

    def note(self, answer: httpx.Response, *, is_right: bool) -> None:
        told = f"{answer.request.method} {answer.request.url} {answer.request.content[:1000]!r}: {answer.text}"
        if not is_right:
            self.wrong[answer.status_code] += 1
            assert 400 <= answer.status_code < 500, f"a wrong request is taken: {told}"
            return
        self.right[answer.status_code] += 1
        if answer.status_code in (400, 422):
            message = answer.json()["error"]["message"]
            assert any(re.search(known, message) for known in ALLOWED), f"a right request is refused: {told}"


def try_requests(
    run: Run, client: httpx.AsyncClient, operation: APIOperation, mode: Any, limits: settings, tried: Tried
) -> None:
    """`mode`: whether the requests are right."""
    is_right = mode is GenerationMode.POSITIVE
    cases: st.SearchStrategy[Case] = operation.as_strategy(mode)

    @limits
    @given(cases)
    def is_answered(case: Case) -> None:
        options = case.as_transport_kwargs(base_url="http://baton")
        request = client.build_request(**{name: options[name] for name in SENT if name in options})

        async def ask() -> httpx.Response:
            async with asyncio.timeout(PATIENCE_S):
                return await client.send(request)

        answer = run(ask())
        check(operation, case, answer)
        if is_right or is_wrong(operation, case, request):
            tried.note(answer, is_right=is_right)

    try:
        is_answered()
    except Unsatisfiable:
        assert not is_right  # of a route without parameters, nothing can be wrong


def wrong_bodies(operation: APIOperation) -> Iterator[Schema]:
    """Bodies of a route that Baton itself parses: each is right but for one field, whose schema refutes it."""
    told = operation.definition.raw.get("requestBody", {}).get("content", {}).get("application/json", {})
    fields: Schema = told.get("schema", {}).get("properties", {})
    base = {name: RIGHT.get(name, ["x"])[0] for name in told.get("schema", {}).get("required", ())}
    for name, schema in fields.items():
        refuted = [value for value in REFUTED if not is_valid(schema, value)]
        yield from ({**base, name: value} for value in refuted)


def try_wrong_bodies(run: Run, client: httpx.AsyncClient, operation: APIOperation, tried: Tried) -> None:
    in_path = {
        one["name"]: one["schema"]["enum"][0]
        for one in operation.definition.raw.get("parameters", ())
        if one["in"] == "path"
    }
    for body in wrong_bodies(operation):
        answer = run(client.request(operation.method, operation.path.format(**in_path), json=body))
        tried.note(answer, is_right=False)
        assert answer.status_code == 400, answer.text


def each_request_is_answered(run: Run, folder: Path, limits: settings) -> None:
    stack = AsyncExitStack()
    try:
        service: Service = run(Service.start(stack, folder))
        both = (service.operations(are_right=are_right) for are_right in (True, False))
        for right, wrong in zip(*both, strict=True):
            tried, name = Tried(), f"{right.method.upper()} {right.path}"
            try_requests(run, service.client, right, GenerationMode.POSITIVE, limits, tried)
            try_requests(run, service.client, wrong, GenerationMode.NEGATIVE, limits, tried)
            try_wrong_bodies(run, service.client, wrong, tried)
            is_found = not any(one in name for one in NEVER_FOUND)
            assert (is_found and name not in NEVER_RIGHT) == (tried.right[200] > 0), (name, tried.right)
            assert tried.wrong or "requestBody" not in wrong.definition.raw, name
    finally:
        run(stack.aclose())


def test_each_request_of_the_document_is_answered_as_it_says(run: Run, tmp_path: Path) -> None:
    each_request_is_answered(run, tmp_path, examples(2, anew=False))


@pytest.mark.fuzz
@pytest.mark.timeout(60 * FUZZ_MINUTES + 300)
def test_requests_of_the_document_for_minutes(run: Run, tmp_path: Path) -> None:
    each_request_is_answered(run, tmp_path, examples(int(15 * FUZZ_MINUTES), anew=True))
