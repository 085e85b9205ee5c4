"""Requests that schemathesis makes of the service's own OpenAPI document, right ones and wrong ones: none fails the
server or hangs, and every answer is one that the document describes.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, Case, GenerationMode

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
RIGHT: dict[str, list[Any]] = {
    "model": ["baton-demo"],
    "messages": [HELLO, [*HELLO, {"role": "assistant", "content": "Yes"}, *HELLO]],
    "prompt": ["Hello", [5, 6]],
    "input": ["Hello", HELLO],
    "items": [HELLO],
    "tokens": [[5, 6], []],
    "max_tokens": [4],
    "metadata": [{"a": "b"}, {}, None],
}
"""Values of fields of bodies in place of what the document says of them, which is wide: most of what follows it is
refused for a reason that no schema can tell.
"""

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
        app = an_app(frontend, state=state)
        stack.push_async_callback(app.state.services.turns.drained, 60)
        service = cls(await stack.enter_async_context(a_client(app)))
        await service._store()
        service.document = (await service.client.get("/openapi.json")).json()
        return service

    def operations(self) -> list[APIOperation]:
        """Those of the document, with right values in its bodies, and its ids in its paths."""
        document = json.loads(json.dumps(self.document))
        schemas = document["components"]["schemas"]
        for name in schemas:
            if name.endswith("Request"):
                schemas[name] = with_right_values(schemas[name])
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["security"] = []  # no credential is required, and half of the requests would have a wrong one
                if "requestBody" in operation:
                    operation["requestBody"] = with_right_values(operation["requestBody"])
                for parameter in operation.get("parameters", ()):
                    if parameter["in"] == "path":
                        parameter["schema"] = {"enum": [*self._stored.get(parameter["name"], []), "x_1"]}
        schema = schemathesis.openapi.from_dict(document)
        return [found.ok() for found in schema.get_all_operations()]

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


def tried(num_examples: int, *, anew: bool) -> settings:
    """With `anew`, each run has new examples. Without it, all runs have the same examples."""
    return settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=not anew,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def try_requests(
    run: Run, client: httpx.AsyncClient, operation: APIOperation, mode: Any, limits: settings
) -> list[int]:
    """The statuses of the answers. `mode`: whether the requests are right."""
    statuses: list[int] = []
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
        statuses.append(answer.status_code)
        check(operation, case, answer)

    try:
        is_answered()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # of a route without parameters, nothing can be wrong
    return statuses


def each_request_is_answered(run: Run, folder: Path, limits: settings) -> None:
    statuses: Counter[int] = Counter()
    stack = AsyncExitStack()
    try:
        service: Service = run(Service.start(stack, folder))
        for operation, mode in product(service.operations(), (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)):
            statuses.update(try_requests(run, service.client, operation, mode, limits))
    finally:
        run(stack.aclose())
    assert statuses[200] > statuses.total() / 10, statuses
    assert statuses[400] and statuses[404], statuses


def test_each_request_of_the_document_is_answered_as_it_says(run: Run, tmp_path: Path) -> None:
    each_request_is_answered(run, tmp_path, tried(2, anew=False))


@pytest.mark.fuzz
@pytest.mark.timeout(60 * FUZZ_MINUTES + 300)
def test_requests_of_the_document_for_minutes(run: Run, tmp_path: Path) -> None:
    each_request_is_answered(run, tmp_path, tried(int(15 * FUZZ_MINUTES), anew=True))
