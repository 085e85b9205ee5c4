"""What constraints of answers cost: their checks the ingress, and following them an engine.

    make bench-constraints

A schema of some 400 bytes and one of 1,000 properties, in one process and without a network. The ingress's parts are
medians over as many constraints that differ; the engine's are per token of one answer that the schema allows, with and
without the guard (cluster/engine_core/grammar_guard.py) in turns.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter, thread_time
from typing import Any, NoReturn

from bench.goals.constraint_cost import COUNTING, KNOWN, NEW, VLLMS_CHECK, missed
from bench.goals.verdict import conclude
from cluster.messages.generation import GenerateRequest
from router.session.receipt import RequestObserver, Terms

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar, StructuredOutputOptions

from api.frontend.frontend import vllm_state
from api.frontend.remote_engine import RemoteEngine
from api.wire.constraints import check_constraints
from cluster.config.application import parse
from cluster.config.structured_output import GrammarBudgetConfig, StructuredOutputConfig
from cluster.engine_core.grammar_backend import GrammarBackend
from cluster.engine_core.grammar_budget import GrammarBudget
from cluster.engine_core.grammar_guard import GrammarGuard, MeteredGrammar

NUM_CONSTRAINTS = 60
NUM_ROUNDS = 40
"""Rounds of following one answer with and without the guard. More make the medians steadier and take longer."""
SMALL, LARGE = 8, 1000
"""Properties."""
CONFIG = {
    "model": "conf/models/baton-demo",
    "engine": {"max_model_len": 4096, "dtype": "bfloat16", "enforce_eager": True},
}


def a_schema(num_properties: int, number: int) -> dict[str, Any]:
    """Unlike those of other numbers."""
    kinds = [{"type": "string"}, {"type": "integer"}, {"enum": ["red", "green"]}, {"type": "boolean"}]
    properties = {f"field_{number}_{index}": kinds[index % len(kinds)] for index in range(num_properties)}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def an_answer(schema: dict[str, Any]) -> str:
    values = ["word", 17, "red", True]
    return json.dumps({name: values[index % len(values)] for index, name in enumerate(schema["properties"])})


async def median_ms(do: Callable[[Any], Awaitable[Any]], arguments: list[Any], clock: Callable[[], float]) -> float:
    took = []
    for argument in arguments:
        began = clock()
        await do(argument)
        took.append(clock() - began)
    return 1e3 * median(took)


async def ingress_costs(engine: RemoteEngine, num_properties: int) -> dict[str, float]:
    """Milliseconds by part."""
    schemas = [a_schema(num_properties, number) for number in range(NUM_CONSTRAINTS)]
    tokenizer, vllm_config = engine.renderer.get_tokenizer(), engine.vllm_config

    async def as_vllm_does(schema: dict[str, Any]) -> None:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))
        params.verify(vllm_config.model_config, None, vllm_config.structured_outputs_config, tokenizer)

    async def count(schema: dict[str, Any]) -> None:
        format_ = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        check_constraints({"response_format": format_}, StructuredOutputConfig())

    async def compile_(schema: dict[str, Any]) -> None:
        await engine.compilers.check("json", json.dumps(schema), "")

    await compile_(a_schema(num_properties, -1))  # the process is started once
    return {
        VLLMS_CHECK: await median_ms(as_vllm_does, schemas, thread_time),
        COUNTING: await median_ms(count, schemas, thread_time),
        NEW: await median_ms(compile_, schemas, perf_counter),
        KNOWN: await median_ms(compile_, schemas, thread_time),
    }


def follow_us(grammar: StructuredOutputGrammar, tokens: list[int], mask: Any) -> float:
    """Microseconds per token."""
    began = thread_time()
    for token in tokens:
        grammar.fill_bitmask(mask, 0)
        assert grammar.accept_tokens("r", [token])
    return 1e6 * (thread_time() - began) / len(tokens)


def engine_costs(engine: RemoteEngine, num_properties: int) -> tuple[float, float]:
    """Microseconds per token without and with the guard."""
    tokenizer = engine.renderer.get_tokenizer()
    backend = GrammarBackend(engine.vllm_config, tokenizer, engine.model_config.get_vocab_size())
    guard = GrammarGuard(GrammarBudget.of(GrammarBudgetConfig()))
    schema = a_schema(num_properties, 0)
    spec, tokens = json.dumps(schema), tokenizer(an_answer(schema), add_special_tokens=False)["input_ids"]
    mask = backend.allocate_token_bitmask(1)
    plain, guarded = [], []
    for _ in range(NUM_ROUNDS):
        one, other = (backend.compile_grammar(StructuredOutputOptions.JSON, spec, {0}) for _ in range(2))
        plain.append(follow_us(one, tokens, mask))
        guarded.append(follow_us(MeteredGrammar(other, guard, guard.together(("json", spec))), tokens, mask))
        guard.spending.begin()
    return median(plain), median(guarded)


def no_session(request: GenerateRequest, terms: Terms, observer: RequestObserver | None) -> NoReturn:
    raise NotImplementedError("nothing is generated here")


async def measure() -> list[str]:
    """Prints the figures, and returns the goals that they miss."""
    state = await vllm_state(parse(CONFIG), no_session)
    engine: Any = state.engine_client
    found: list[str] = []
    for num_properties in (SMALL, LARGE):
        num_bytes = len(json.dumps(a_schema(num_properties, 0)))
        print(f"a schema of {num_properties} properties, {num_bytes} bytes")
        ingress_ms = await ingress_costs(engine, num_properties)
        for name, ms in ingress_ms.items():
            print(f"  {name:48} {ms:8.2f} ms")
        plain_us, guarded_us = engine_costs(engine, num_properties)
        print(f"  {'following it in an engine, without the guard':48} {plain_us:8.1f} us/token")
        print(f"  {'with the guard':48} {guarded_us:8.1f} us/token")
        found += missed(f"{num_properties} properties", ingress_ms, plain_us, guarded_us)
    await engine.compilers.close()
    return found


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    conclude(asyncio.run(measure()))


if __name__ == "__main__":
    main()
