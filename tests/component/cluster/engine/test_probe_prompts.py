import pytest

from cluster.engine.probe_prompts import EngineProbes
from cluster.messages.reports import EngineShape
from decode.link_probe import SMALL_BLOCKS
from kvtransfer.telemetry import TransferLog


@pytest.mark.parametrize(
    ("step_tokens", "max_model_len", "blocks"),
    [(2048, 4096, 64), (2048, 1024, 16), (64, 4096, 8)],
    ids=["a step", "half of the context", "steps of two blocks"],
)
def test_largest_probe(step_tokens: int, max_model_len: int, blocks: int) -> None:
    shape = EngineShape(block_size=32, max_step_tokens=step_tokens)
    probes = EngineProbes(shape, max_model_len, vocab_size=100, transfers=TransferLog())
    assert probes.largest_probe_blocks == blocks > SMALL_BLOCKS
