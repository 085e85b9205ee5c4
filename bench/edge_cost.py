"""What the edge costs a request: headers, checks, reading and validation, against another commit.

    make bench-edge BASE=<commit>

A worktree of the other commit is made; the two sides take turns, each in a process of its own that answers over a real
socket with vLLM's request models and renderer and no engine. The only client is in the same process: CPU time is that
of both. The ratios are of medians.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from inspect import signature
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 8
CHATS = {"500 tokens": (300, 300), "32k tokens": (19_000, 12)}
"""Words of a chat, and how many are sent in a round."""
WARM = 5
WORDS = "the code of Tosk is nine and that of Mela four while rain falls on Paris today".split()  # noqa: SIM905
MAX_MODEL_LEN = 65_536


async def serve_and_measure() -> dict[str, list[float]]:
    """Measure in the process of one side, which imports its modules from its own worktree."""
    import httpx

    import api.http_app  # noqa: F401  # before what it imports
    from api.frontend.frontend import Frontend
    from api.server.listener import HttpListener
    from api.server.protocol import Gatekeeper
    from bench.fronts.free_ports import free_port
    from cluster.config.application import parse
    from cluster.config.ingress import IngressConfig
    from tests.component.app_with_fakes import FakeCluster, NoEvents, an_app
    from tests.component.fake_engines import FakeEngines

    engine = {"max_model_len": MAX_MODEL_LEN, "dtype": "bfloat16", "enforce_eager": True}
    config = parse({"model": "conf/models/baton-demo", "engine": engine})
    start_session: Any = FakeEngines().start_session  # whose sessions are fakes
    frontend = await Frontend.start(config, start_session, NoEvents())
    port = free_port()
    app: Any = an_app(frontend, FakeCluster())
    with contextlib.suppress(ImportError, AttributeError):  # of commits whose application does not cancel by itself
        app = import_module("api.edge.exchange").CancelledByDisconnect(app)
    start: Any = HttpListener.start
    service = ["baton"] if "service" in signature(start).parameters else []  # commits differ
    listener = await start(app, Gatekeeper(IngressConfig(port=port)), *service)
    chance, took = random.Random(0), {}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        for name, (num_words, number) in CHATS.items():
            cpu_s, wall_s = [], []
            for index in range(WARM + number):
                text = f"{index} " + " ".join(chance.choices(WORDS, k=num_words))
                content = json.dumps(
                    {"model": "baton-demo", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
                )
                began_cpu, began = time.process_time(), time.perf_counter()
                answer = await client.post(
                    "/v1/chat/completions", content=content, headers={"content-type": "application/json"}
                )
                cpu_s.append(time.process_time() - began_cpu)
                wall_s.append(time.perf_counter() - began)
                assert answer.status_code == 200, answer.text
            took[f"{name}, CPU"] = cpu_s[WARM:]
            took[f"{name}, latency"] = wall_s[WARM:]
    await listener.close()
    return took


def measured_in(tree: Path) -> dict[str, list[float]]:
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "PYTHONWARNINGS": "ignore",
    }
    # With -P the folder of this script is no place to import from: the modules are those of `tree`
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--side"]
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{tree}: {ran.stderr[-2000:]}")
    taken: dict[str, list[float]] = json.loads(ran.stdout.splitlines()[-1])
    return taken


def compare(base: str) -> None:
    # Not at the top: the other commit's process runs this file, and may lack the modules
    from bench.goals.edge_cost import missed
    from bench.goals.verdict import conclude

    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--detach", str(other), base], cwd=ROOT, check=True)
        try:
            sides: dict[str, list[dict[str, list[float]]]] = {"this": [], "base": []}
            for number in range(ROUNDS):
                order = [("this", ROOT), ("base", other)]
                for name, tree in order if number % 2 else reversed(order):
                    sides[name].append(measured_in(tree))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)
    of_medians = {}
    for what in sides["this"][0]:
        this, that = ([1000 * median(taken[what]) for taken in sides[side]] for side in ("this", "base"))
        ratios = sorted(one / other for one, other in zip(this, that, strict=True))
        print(
            f"{what:>22}: {median(this):7.2f} ms, {median(that):7.2f} ms at {base}; "
            f"ratio {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )
        of_medians[what] = median(ratios)
    conclude(missed(of_medians))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="HEAD~1", help="the other commit")
    parser.add_argument("--side", action="store_true", help="measure this worktree alone, and say it as JSON")
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(asyncio.run(serve_and_measure())))
    else:
        compare(arguments.base)
