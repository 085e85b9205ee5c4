"""What an engine's generations ask of vLLM, and what they make of its answers, without an engine."""

from cluster.engine.generations import EngineGenerations
from cluster.messages.ids import RequestId, WorkerId
from cluster.step_stream.buffer import TokenBuffer
from kvtransfer import verify
from kvtransfer.handoff import PULL_DEADLINE, KVHandoff
from kvtransfer.telemetry import PULLS_KEY, Pull, PullLog
from tests.component.cluster.engine.fake_runner import PARAMS, R, Runner, a_request


async def test_generation_pulls_until_its_deadline_and_generates_what_is_left() -> None:
    runner = Runner()
    handoff = KVHandoff.from_engine(WorkerId("p"), PARAMS)
    request = a_request(num_generated=3, max_tokens=50, is_verified=True)
    await EngineGenerations(runner, PullLog()).start(request, handoff, TokenBuffer(1), 8.0)
    assert runner.kv_transfer_params is not None and runner.params is not None
    assert runner.kv_transfer_params[PULL_DEADLINE] == 8.0
    assert (runner.params.max_tokens, runner.params.detokenize, runner.params.logprobs) == (47, False, verify.NUM_TOP)


async def test_pull_reads_for_as_long_as_its_slowest_rank() -> None:
    runner = Runner()
    runner.answers = [{"r-internal": 0.5}, {"r-internal": 2.0}]
    renewed = await EngineGenerations(runner, PullLog()).renew_pulls({R: 9.0, RequestId("gone"): 9.0})
    assert renewed == {R: 2.0}
    assert runner.calls == [("baton_renew_pulls", ({"r-internal": 9.0},))]


def test_seconds_of_a_pull_are_given_once() -> None:
    pulls = PullLog()
    pulls.record({PULLS_KEY: [["r-internal", [0.3]]]})
    generations = EngineGenerations(Runner(), pulls)
    assert [generations.pull_of(R), generations.pull_of(R)] == [Pull(0.3), None]
    assert generations.pull_of(RequestId("gone")) is None
