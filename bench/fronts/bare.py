"""The floor: a prefill and a decode engine with NIXL between them, driven in one process by vLLM's AsyncLLM.

Token ids in, token ids out: no text, no HTTP, no other process than the engine cores.
"""

import itertools
import json
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import uvloop
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from bench.fronts.load import ClosedLoop, Load, Request, Trace, obey


class EnginePair:
    """Runs requests of one size: a load's."""

    def __init__(self, arguments: dict[str, Any], transfers: list[dict[str, Any]], ports: list[int]) -> None:
        self._prefill, self._decode = (
            _engine(arguments, transfer, port) for transfer, port in zip(transfers, ports, strict=True)
        )
        self._tokenizer = self._decode.get_tokenizer()
        self._ids = itertools.count()

    def prepare(self, load: Load) -> list[Request]:
        return [self._request(self._token_ids(prompt), load.max_tokens) for prompt in load.prompts]

    def _token_ids(self, prompt: str) -> list[int]:
        messages = [{"role": "user", "content": prompt}]
        rendered = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer.encode(rendered, add_special_tokens=False))

    def _request(self, prompt_token_ids: list[int], max_tokens: int) -> Request:
        prompt: Any = {"type": "token", "prompt_token_ids": prompt_token_ids}

        async def request() -> Trace:
            request_id, started_at = f"bare-{next(self._ids)}", time.perf_counter()
            handoff = await self._prefilled(prompt, request_id)
            params = SamplingParams(
                max_tokens=max_tokens,
                temperature=0.0,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
                extra_args={"kv_transfer_params": handoff},
            )
            arrivals, tokens = [], 0
            async for output in self._decode.generate(prompt, params, request_id):
                arrivals.append(time.perf_counter())
                tokens += len(output.outputs[0].token_ids)
            return Trace(started_at, tuple(arrivals), tokens, len(prompt_token_ids))

        return request

    async def _prefilled(self, prompt: Any, request_id: str) -> dict[str, Any]:
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}},
        )
        handoff = None
        async for output in self._prefill.generate(prompt, params, request_id):
            handoff = output.kv_transfer_params
        if handoff is None:
            raise RuntimeError("the prefill engine gave no handoff")
        return handoff


def _engine(arguments: dict[str, Any], transfer: dict[str, Any], port: int) -> AsyncLLM:
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(port)
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(**arguments, kv_transfer_config=KVTransferConfig(**transfer), disable_log_stats=False)
    )


async def _run(connection: Connection, arguments: str, transfers: str, ports: str) -> None:
    engines = EnginePair(json.loads(arguments), json.loads(transfers), json.loads(ports))
    await obey(connection, ClosedLoop(engines))


if __name__ == "__main__":
    uvloop.run(_run(Connection(int(sys.argv[1])), *sys.argv[2:]))
