"""What a handoff takes, part by part, and how soon the blocks of one that nobody wants are free.

Asks a running service for answers over path P->D, one at a time, and reads the parts from its metrics; then asks for
answers of one token, which the prefill worker gives by itself: their handoffs are released as those of a client that
has left. The service must allow the header `x-baton-path` (`ingress.allow_path_header: true`). Every prompt is new, so
no prefix is cached.
"""

import argparse
import json
import platform
import random
import time
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from api.identity.admin.admin_key import known_admin_key
from bench.goals.handoff import missed
from bench.goals.verdict import conclude
from cluster.config.state import StateConfig
from cluster.repository import REPO_ROOT

PARTS = {
    "redeem": ("baton_handoff_seconds", {"part": "redeem"}),
    "until the first token": ("baton_handoff_seconds", {"part": "first_token"}),
    "of which the pull": ("vllm:nixl_xfer_time_seconds", {"deployment": "decode"}),
}
RELEASE = ("baton_lease_release_seconds", {"deployment": "prefill"})
SETTLE_S = 1.0
"""Between the last answer and the scrape."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the service is (%(default)s)")
    parser.add_argument("--admin-url", default="http://127.0.0.1:8001", help="its admin port (%(default)s)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 500, 2000], help="prompt tokens (%(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="requests per length (%(default)s)")
    parser.add_argument("--released", type=int, default=100, help="handoffs to be released (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    rng = random.Random(0)
    try:
        key = known_admin_key(REPO_ROOT / StateConfig().data_dir)
    except (LookupError, OSError, ValueError) as error:
        parser.error(str(error))
    with (
        httpx.Client(base_url=arguments.url, timeout=60, headers={"x-baton-path": "P->D"}) as http,
        httpx.Client(base_url=arguments.admin_url, timeout=60, headers={"authorization": f"Bearer {key}"}) as admin,
    ):
        service = Service(http, admin, rng)
        service.answer(64)  # the first request of a service is slower than all others
        parts = {length: service.parts(length, arguments.rounds) for length in arguments.lengths}
        released = service.released(min(arguments.lengths), arguments.released)
    print(f"{platform.processor() or platform.machine()}, means of {arguments.rounds} requests, milliseconds")
    print(f"{'prompt':>8}" + "".join(f"{part:>24}" for part in PARTS))
    for length, row in parts.items():
        print(f"{length:8d}" + "".join(f"{row[part]:24.2f}" for part in PARTS))
    limits = ", ".join(f"{1e3 * released[share]:g} ms at {share}" for share in ("p50", "p90", "p99"))
    print(f"{released['count']:.0f} handoffs released; blocks free within {limits} (limits of the histogram's buckets)")
    if arguments.json:
        arguments.json.write_text(json.dumps({"parts_ms": parts, "released_s": released}))
    conclude(missed(parts, released, arguments.released))


class Service:
    def __init__(self, http: httpx.Client, admin: httpx.Client, rng: random.Random) -> None:
        """`admin`: of the admin port."""
        self._http = http
        self._admin = admin
        self._rng = rng
        self._model = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]

    def parts(self, length: int, rounds: int) -> dict[str, float]:
        """Mean milliseconds per part."""
        before = self._buckets()
        for number in range(rounds):
            self.answer(length)
            print(f"\rprompts of {length} tokens: {number + 1}/{rounds}", end="", flush=True)
        time.sleep(SETTLE_S)
        after = self._buckets()
        print("\r", end="")
        return {part: 1e3 * _gained(before, after, *of, "_sum") / rounds for part, of in PARTS.items()}

    def released(self, length: int, count: int) -> dict[str, float]:
        """Seconds until the blocks were free, as the upper limits of the histogram's buckets."""
        before = self._buckets()
        for number in range(count):
            self.answer(length, max_tokens=1)
            print(f"\rreleased: {number + 1}/{count}", end="", flush=True)
        time.sleep(SETTLE_S)
        after = self._buckets()
        print("\r", end="")
        name, labels = RELEASE
        total = _gained(before, after, name, labels, "_count")
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        limits = {label: _quantile(before, after, name, labels, share * total) for label, share in shares.items()}
        return {"count": total, **limits}

    def answer(self, length: int, max_tokens: int = 2) -> None:
        self._http.post("/v1/completions", json=self._body(length, max_tokens)).raise_for_status()

    def _body(self, length: int, max_tokens: int) -> dict[str, object]:
        prompt = [self._rng.randrange(300, 1300) for _ in range(length)]
        return {"model": self._model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}

    def _buckets(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """All samples, by name and labels."""
        families = text_string_to_metric_families(self._admin.get("/metrics").raise_for_status().text)
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _gained(before: Samples, after: Samples, name: str, labels: dict[str, str], suffix: str) -> float:
    wanted = labels.items()
    keys = [key for key in after if key[0] == name + suffix and wanted <= dict(key[1]).items()]
    return sum(after[key] - before.get(key, 0.0) for key in keys)


def _quantile(before: Samples, after: Samples, name: str, labels: dict[str, str], rank: float) -> float:
    """The upper limit of the bucket that holds the observation of this rank."""
    limits = sorted({dict(key[1])["le"] for key in after if key[0] == f"{name}_bucket"}, key=float)
    for limit in limits:
        if _gained(before, after, name, labels | {"le": limit}, "_bucket") >= rank:
            return float(limit)
    return float("inf")


if __name__ == "__main__":
    main()
