"""TTFT and TPOT of a running service, one stream at a time, by prompt length and path.

The paths are interleaved in one run, so that their ratio holds on a noisy machine. The service must allow the header
`x-baton-path` (`ingress.allow_path_header: true`). Every prompt is new, so no prefix is cached. `P->D plain` is the
handoff of a request that does not take its first token from the prefill worker: one with a stop string.
"""

import argparse
import json
import platform
import random
import statistics
import time
from pathlib import Path

import httpx

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "P->D": ("P->D", {}),
    "P->D plain": ("P->D", {"stop": ["a text that no model says"]}),
    "D": ("D", {}),
    "P": ("P", {}),
}
"""Path and further fields of the request."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the service is (%(default)s)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 500, 2000], help="prompt tokens (%(default)s)")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20, help="requests per length and path (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the samples here")
    arguments = parser.parse_args()
    samples = measure(arguments)
    print(f"{platform.processor() or platform.machine()}, {arguments.rounds} requests per row, milliseconds")
    print(f"{'prompt':>8} {'path':>10} {'TTFT p50':>9} {'TTFT p90':>9} {'TPOT p50':>9}")
    for (length, path), rows in samples.items():
        ttfts, tpots = zip(*rows, strict=True)
        ninth = statistics.quantiles(ttfts, n=10)[-1]
        print(f"{length:8d} {path:>10} {statistics.median(ttfts):9.1f} {ninth:9.1f} {statistics.median(tpots):9.2f}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps([{"prompt": n, "path": p, "ttft_tpot_ms": r} for (n, p), r in samples.items()])
        )


def measure(arguments: argparse.Namespace) -> dict[tuple[int, str], list[tuple[float, float]]]:
    """(TTFT, TPOT) in milliseconds per prompt length and path."""
    rng = random.Random(0)
    cells = [(length, path) for length in arguments.lengths for path in VARIANTS]
    samples: dict[tuple[int, str], list[tuple[float, float]]] = {cell: [] for cell in cells}
    with httpx.Client(base_url=arguments.url, timeout=60) as http:
        model = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        for number in range(arguments.rounds + 1):
            for length, path in cells:
                prompt = [rng.randrange(300, 1300) for _ in range(length)]
                header, fields = VARIANTS[path]
                body = {"model": model, "prompt": prompt, "max_tokens": arguments.output_tokens, **fields}
                row = one_request(http, body, header)
                if number:  # the first round warms up
                    samples[length, path].append(row)
            print(f"\rround {number}/{arguments.rounds}", end="", flush=True)
    print("\r", end="")
    return samples


def one_request(http: httpx.Client, body: dict[str, object], path: str) -> tuple[float, float]:
    """TTFT and TPOT in milliseconds. The last chunk's time and `usage` give TPOT: chunks may hold several tokens."""
    body = {**body, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    started_at, first_at, last_at = time.perf_counter(), 0.0, 0.0
    usage: dict[str, int] = {}
    with http.stream("POST", "/v1/completions", json=body, headers={"x-baton-path": path}) as response:
        if response.status_code != httpx.codes.OK:
            raise SystemExit(f"{response.status_code}: {response.read().decode()}")
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            if chunk["choices"]:
                last_at = time.perf_counter()
                first_at = first_at or last_at
    return 1e3 * (first_at - started_at), 1e3 * (last_at - first_at) / (usage["completion_tokens"] - 1)


if __name__ == "__main__":
    main()
