"""The rules of structure that no type checker sees: who imports what, what pure modules keep their hands off, how long
files and functions are."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from cluster.compiled import INTERPRETED, MODULES

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("api", "cluster", "decode", "kvtransfer", "prefill", "router")
SOURCES = sorted(file.relative_to(ROOT).as_posix() for package in PACKAGES for file in (ROOT / package).rglob("*.py"))

PURE = (
    "router/state.py",
    "router/placement/goodput.py",
    "router/admission/admission.py",
    "router/admission/arrivals.py",
    "router/placement/placement_input.py",
    "router/load/charge.py",
    "router/load/charges.py",
    "router/placement/commit.py",
    "router/placement/candidates.py",
    "router/placement/cost.py",
    "router/load/prefill_share.py",
    "router/admission/fairness.py",
    "router/load/worker_state.py",
    "router/placement/lmetric.py",
    "router/load/decode_slack.py",
    "router/prediction/output_lengths.py",
    "router/placement/no_candidates.py",
    "router/quarantine/quarantine.py",
    "router/placement/suspects.py",
    "router/admission/waiting_queue.py",
    "router/quarantine/request_digest.py",
    "router/admission/retry_after.py",
    "router/prefixes/index.py",
    "router/prefixes/block_table.py",
    "router/prediction/hardware.py",
    "router/prediction/latency.py",
    "router/prediction/path_bias.py",
    "router/prediction/recursive_least_squares.py",
    "router/prediction/transfer.py",
    "router/placement/option.py",
    "router/prediction/roofline.py",
    "router/prediction/step_model.py",
    "router/prefixes/expected_blocks.py",
    "router/prefixes/worker_bits.py",
    "router/session/session.py",
    "router/session/handoff_check.py",
    "router/session/fallback_placement.py",
    "router/ingresses.py",
    "cluster/clients/scheduler_outbox.py",
    "router/session/ports.py",
    "router/session/receipt.py",
    "router/session/timing.py",
    "kvtransfer/handoff.py",
    "kvtransfer/notifications.py",
    "kvtransfer/lease.py",
    "prefill/leases.py",
    "kvtransfer/verify.py",
    "decode/link_speed.py",
    "kvtransfer/transport/link_table.py",
    "decode/proven_links.py",
    "kvtransfer/tiers/arguments.py",
    "decode/link_probe.py",
    "kvtransfer/telemetry.py",
    "kvtransfer/transport/topology.py",
    "cluster/engine/shape.py",
    "cluster/slo.py",
    "cluster/engine_core/step_samples.py",
    "cluster/engine/kv_mirror.py",
    "cluster/messages/generation.py",
    "cluster/messages/ids.py",
    "cluster/messages/kv_events.py",
    "cluster/messages/placement.py",
    "cluster/messages/reports.py",
    "cluster/messages/scheduler_events.py",
    "cluster/messages/transport.py",
    "cluster/messages/views.py",
    "cluster/errors.py",
    "cluster/step_stream/buffer.py",
    "cluster/config/application.py",
    "cluster/config/context.py",
    "cluster/config/ingress.py",
    "cluster/config/network.py",
    "cluster/config/pools.py",
    "cluster/config/repository.py",
    "cluster/config/state.py",
    "cluster/config/structured_output.py",
    "cluster/config/units.py",
    "cluster/engine_core/grammar_budget.py",
    "cluster/engine_core/tag_schemas.py",
    "cluster/metrics.py",
    "cluster/network/handshake.py",
    "cluster/simulation/engine/single_engine.py",
    "cluster/simulation/engine/kv_cache.py",
    "cluster/simulation/engine/decode_batch.py",
    "cluster/simulation/engine/simulated_engine.py",
    "cluster/simulation/engine/engine_request.py",
    "cluster/simulation/engine/engine_setting.py",
    "cluster/simulation/pools/link_model.py",
    "cluster/simulation/results/chart.py",
    "cluster/simulation/results/summary.py",
    "cluster/simulation/rate_search.py",
    "cluster/simulation/traffic/slos.py",
    "cluster/simulation/pools/pool_setting.py",
    "cluster/simulation/traffic/workload.py",
    "api/context/draft.py",
    "api/context/prompt_notes.py",
    "api/context/plan.py",
    "api/context/turn_boundaries.py",
    "api/wire/constraints.py",
    "api/wire/depth.py",
    "api/wire/differences.py",
    "api/wire/fields.py",
    "api/wire/fingerprint.py",
    "api/wire/slo.py",
    "api/wire/sse.py",
    "api/wire/structure.py",
    "api/wire/bounds.py",
    "api/identity/credentials.py",
    "api/identity/tenants.py",
    "api/server/browser.py",
    "api/server/byte_budget.py",
    "api/server/capacity.py",
    "api/server/connections.py",
    "api/server/head.py",
    "api/server/hosts.py",
    "api/server/receipt_log.py",
    "api/wire/completions/assembly.py",
    "api/wire/completions/messages.py",
    "api/wire/responses/as_chat.py",
    "api/state/event_streams/event_log.py",
    "api/wire/responses/events.py",
    "api/wire/responses/short_events.py",
    "api/responses/title_text.py",
    "api/state/postgres/shares.py",
    "api/state/postgres/stores/search_words.py",
    "api/wire/bodies.py",
)

ALLOWED = {
    "vllm": (
        "cluster/engine_core/grammar_backend.py",
        "cluster/engine_core/grammar_guard.py",
        "cluster/engine/block_hashes.py",
        "cluster/engine/engine.py",
        "cluster/engine/token_tap.py",
        "cluster/engine/step_stats.py",
        "cluster/engine/sampling_params.py",
        "kvtransfer/connector.py",
        "kvtransfer/tiers/disk.py",
        "kvtransfer/tiers/host.py",
        "kvtransfer/side_channel.py",
        "api/frontend/generation.py",
        "api/frontend/fast_tokenizer.py",
        "api/structured/beside_tools.py",
        "api/frontend/remote_engine.py",
        "api/frontend/frontend.py",
        "api/frontend/plain_frames.py",
        "api/frontend/plain_streams.py",
        "api/frontend/vllm_errors.py",
    ),
    "ray": (
        "*/deployment.py",
        "api/http_app.py",
        "api/server/cluster_handle.py",
        "cluster/app.py",
        "cluster/serve_context.py",
    ),
    "nixl": ("kvtransfer/*",),
    "torch": ("kvtransfer/tiers/host.py",),
    "fastapi": ("api/*",),
    "starlette": ("api/*",),
    "pydantic": ("api/*",),
    "openai": ("api/wire/items.py",),
    "psycopg": ("api/state/*", "cluster/services/postgres.py"),
    "redis": ("api/state/*",),
    "cryptography": ("api/state/encryption/tenant_keys.py", "kvtransfer/side_channel.py"),
}

MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60

OUTSIDE_WORLD = {"time", "random", "os", "datetime", "threading", "subprocess", "socket"}
"""Clock, chance, environment and I/O: arguments of pure modules, not imports."""


def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(), file)


def imports(file: str) -> Iterator[str]:
    """Names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (
                name if (ROOT / f"{name.replace('.', '/')}.py").is_file() else str(node.module) for name in names
            )


def roots(file: str) -> set[str]:
    return {name.partition(".")[0] for name in imports(file)}


@pytest.mark.parametrize("framework", ALLOWED)
def test_framework_is_imported_only_where_it_is_adapted(framework):
    allowed = ALLOWED[framework]
    users = [file for file in SOURCES if framework in roots(file)]
    assert [file for file in users if not any(fnmatch(file, pattern) for pattern in allowed)] == []


def test_pure_modules_load_no_framework():
    modules = [file.removesuffix(".py").replace("/", ".") for file in PURE]
    program = (
        f"import sys, importlib\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        f"print(*sorted({{'ray', 'vllm', 'torch', 'nixl'}} & sys.modules.keys()))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


@pytest.mark.parametrize("file", PURE)
def test_pure_module_reads_no_clock_chance_or_environment(file):
    assert roots(file) & OUTSIDE_WORLD == set()
    clocks = [n for n in ast.walk(tree(file)) if isinstance(n, ast.Attribute) and n.attr in ("time", "environ")]
    assert clocks == []


def test_unit_tests_import_pure_modules_only():
    allowed = {file.removesuffix(".py").replace("/", ".") for file in PURE} | {"cluster.cli.main", "cluster.compiled"}
    files = [file.relative_to(ROOT).as_posix() for file in (ROOT / "tests/unit").glob("*.py")]
    ours = {name for file in files for name in imports(file) if name.partition(".")[0] in PACKAGES}
    assert ours - allowed == set()
    assert {"ray", "vllm", "torch", "nixl"} & set.union(*map(roots, files)) == set()


def test_what_is_compiled_belongs_to_all_sources_of_ours_that_it_reads():
    ours = {name for module in MODULES for name in imports(f"{module.replace('.', '/')}.py")}
    assert {name for name in ours if name.partition(".")[0] in PACKAGES} <= {*MODULES, *INTERPRETED}


@pytest.mark.parametrize("file", SOURCES)
def test_file_is_short_enough_to_be_read_at_once(file):
    assert (ROOT / file).read_text().count("\n") <= MAX_FILE_LINES


@pytest.mark.parametrize("file", SOURCES)
def test_functions_are_short_enough_to_be_read_at_once(file):
    functions = [n for n in ast.walk(tree(file)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    too_long = [n.name for n in functions if (n.end_lineno or n.lineno) - n.lineno + 1 > MAX_FUNCTION_LINES]
    assert too_long == []
