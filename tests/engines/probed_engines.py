"""A prefill and a decode engine that answer the prompts of the quality probe on their paths, and an engine one of whose
weights is a little wrong. A program: vLLM spawns its engine cores. Writes what the comparison says as JSON;
tests/engines/test_probed_engines.py says what that must be.
"""

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from api.frontend.probing import probe_request, steps_of
from api.quality.comparison import compared
from api.quality.learning import Learner
from api.quality.probe_set import OWN_PROMPTS
from api.quality.schedule import ProbeTarget
from cluster.config.observability.quality_probe import QualityProbeConfig
from cluster.engine.engine import Engine
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import Path as Routing
from cluster.messages.ids import Pool, RequestId, WorkerId
from cluster.messages.quality import Answer
from cluster.repository import resolve_model
from cluster.step_stream.buffer import TokenBuffer
from kvtransfer.handoff import KVHandoff
from tests.engines.bare_engine import CONFIG, a_bare_engine

NUM_TOKENS = QualityProbeConfig().tokens
ERROR = 0.05
"""Standard deviation of the error of one weight matrix, as a share of that of the matrix."""


class Asks:
    def __init__(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(CONFIG.model))
        self.prompts = {prompt.name: tokenizer(prompt.text)["input_ids"] for prompt in OWN_PROMPTS}
        self._num = 0

    def of(self, salt: str) -> Iterator[tuple[str, GenerateRequest]]:
        for name, tokens in self.prompts.items():
            self._num += 1
            yield name, probe_request(RequestId(f"probe-{self._num}"), tokens, NUM_TOKENS, salt)


async def answered(engine: Engine, request: GenerateRequest, handoff: KVHandoff | None = None) -> Answer:
    buffer, answer = TokenBuffer(1), list[Any]()
    await engine.generations.start(request, handoff, buffer, time.monotonic() + 30)
    while deltas := await buffer.next():
        for delta in deltas:
            answer += steps_of(delta)
    return answer


async def handed_over(prefill: Engine, decode: Engine, request: GenerateRequest) -> Answer:
    prefilled = await prefill.prefills.prefill(request)
    assert prefilled is not None and prefilled[0].handoff is not None
    decoding = msgspec.structs.replace(request, request_id=RequestId(f"{request.request_id}-decode"))
    return await answered(decode, decoding, prefilled[0].handoff)


def an_engine(pool: Pool, model: Path | None = None) -> Engine:
    config = CONFIG.pool(CONFIG.decode if pool is Pool.DECODE else CONFIG.prefill)
    if model is not None:
        config = msgspec.structs.replace(config, engine={**config.engine, "model": str(model)})
    return a_bare_engine(pool, config, lambda ended: None)


def with_a_wrong_weight(folder: Path) -> Path:
    """A copy of the model whose weights differ in one matrix."""
    model = folder / "model"
    shutil.copytree(resolve_model(CONFIG.model), model)
    weights = load_file(model / "model.safetensors")
    name = next(name for name in weights if name.endswith("mlp.down_proj.weight"))
    matrix = weights[name].float()
    noise = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(1)) * matrix.std() * ERROR
    weights[name] = (matrix + noise).to(weights[name].dtype)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


async def probed(folder: Path) -> dict[str, Any]:
    asks = Asks()
    prefill, decode = an_engine(Pool.PREFILL), an_engine(Pool.DECODE)
    reference = {name: await answered(decode, request) for name, request in asks.of("first")}

    pair = {name: await handed_over(prefill, decode, request) for name, request in asks.of("pair")}
    alone = {name: await answered(prefill, request) for name, request in asks.of("alone")}
    computed = {name: await answered(decode, request) for name, request in asks.of("again")}
    cached = {name: await answered(decode, request) for name, request in asks.of("again")}
    learner = Learner(reference)
    for name, answer in reference.items():
        learner.note(ProbeTarget(WorkerId("d"), Routing.DECODE), name, answer, cached[name])
        learner.note(ProbeTarget(WorkerId("p"), Routing.PREFILL), name, alone[name])
        learner.note(ProbeTarget(WorkerId("d"), Routing.PREFILL_DECODE), name, pair[name])
    tolerances = learner.tolerances(reference)

    def seen(answers: dict[str, Answer], path: Routing = Routing.DECODE) -> dict[str, Any]:
        """The results."""
        found = {name: compared(name, reference[name], answer, tolerances[path]) for name, answer in answers.items()}
        return {name: [one.result, max(one.distances)] for name, one in found.items()}

    said = {
        "D, computed": seen(computed),
        "D, cached": seen(cached),
        "P": seen(alone, Routing.PREFILL),
        "P->D": seen(pair, Routing.PREFILL_DECODE),
    }
    prefill.shutdown()
    decode.shutdown()
    wrong = an_engine(Pool.DECODE, with_a_wrong_weight(folder))
    said["wrong"] = seen({name: await answered(wrong, request) for name, request in asks.of("wrong")})
    wrong.shutdown()
    return {"said": said, "lengths": [len(answer) for answer in reference.values()]}


if __name__ == "__main__":
    Path(sys.argv[1], "said.json").write_text(json.dumps(asyncio.run(probed(Path(sys.argv[1])))))
