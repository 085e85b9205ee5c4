from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from cluster.config.application import AppConfig, parse
from cluster.config.pools import PoolConfig
from cluster.config.tenants.identity import OPEN_ACCESS
from cluster.messages.ids import CellName, Pool, SloClass
from cluster.repository import REPO_ROOT, resolve_model
from cluster.slo import Objective, SloConfig

SERVE_CONFIGS = [
    file
    for folder in ("conf", "conf/ray-up")
    for file in (REPO_ROOT / folder).glob("*.yaml")
    if "import_path: cluster.app:build" in file.read_text()
]


def a_config(**args: object) -> AppConfig:
    return parse({"model": "org/model"} | args)


def test_model_is_all_that_must_be_said() -> None:
    config = a_config()
    assert (config.model_name, config.prefill, config.decode) == ("model", PoolConfig(), PoolConfig())


def test_section_metrics_says_what_engines_measure_unless_the_pool_does() -> None:
    default = a_config()
    assert default.pool(default.decode).engine["kv_cache_metrics"] is True
    assert default.pool(default.decode).engine["enable_mfu_metrics"] is False
    config = a_config(metrics={"engine_mfu": True}, decode={"engine": {"kv_cache_metrics": False}})
    assert config.pool(config.prefill).engine["enable_mfu_metrics"] is True
    assert config.pool(config.decode).engine["kv_cache_metrics"] is False


@pytest.mark.parametrize("file", SERVE_CONFIGS, ids=lambda file: file.name)
def test_serve_config_of_the_repository_is_valid(file: Path) -> None:
    for application in yaml.safe_load(file.read_text())["applications"]:
        assert parse(application["args"]).model


def test_who_asks_must_say_who_it_is_unless_the_config_says_otherwise() -> None:
    assert a_config(ingress={"host": "0.0.0.0"}).identity.required
    assert not a_config(identity={"required": False}).identity.required
    open_to_all = {"required": False, "open_access": OPEN_ACCESS}
    assert not a_config(ingress={"host": "0.0.0.0"}, identity=open_to_all).identity.required


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"identity": {"required": False}, "ingress": {"host": "0.0.0.0"}}, r"identity: required is false and"),
        ({"identity": {"open_access": OPEN_ACCESS}}, r"identity: leave open_access out"),
        ({"identity": {"open_access": "yes"}}, r"\$\.identity\.open_access"),
        ({"identity": {"require": False}}, r"unknown field `require` - at `\$\.identity`"),
        ({"decode": {"replicas": 0}}, r"\$\.decode\.replicas"),
        ({"prefill": {"kv_lease_s": 4}}, r"\$\.prefill\.kv_lease_s"),
        ({"prefill": {"kv_lease_s": 601}}, r"\$\.prefill\.kv_lease_s"),
        ({"prefill": {"gpus": -1}}, r"\$\.prefill\.gpus"),
        ({"cells": {"names": []}}, r"\$\.cells\.names"),
        ({"cells": {"names": ["a", "B"]}}, r"names: 'B' must be 1 to 20 lower-case letters, digits and dashes"),
        ({"cells": {"names": ["a-"]}}, r"names: 'a-' must be 1 to 20"),
        ({"cells": {"names": ["a" * 21]}}, r"must be 1 to 20"),
        ({"cells": {"names": ["a", "b", "a"]}}, r"names: 'a' is there twice"),
        ({"cells": {"load_bound": 0.9}}, r"\$\.cells\.load_bound"),
        ({"cells": {"label": ""}}, r"label: leave it out"),
        (
            {"cells": {"label": "zone"}, "decode": {"label_selector": {"zone": "x"}}},
            r"decode: label_selector: leave the label 'zone' out",
        ),
        ({"decode": {"cpu_threads": 0}}, r"\$\.decode\.cpu_threads"),
        ({"decode": {"max_ongoing_requests": 0}}, r"\$\.decode\.max_ongoing_requests"),
        (
            {"decode": {"engine": {"scheduler_cls": "a.B"}}},
            r"decode\.engine: scheduler_cls cannot be set here: Baton sets it",
        ),
        ({"engine": {"scheduling_policy": "fcfs"}}, r"engine: scheduling_policy cannot be set here: Baton sets it"),
        ({"context": {"memory_share": 0.5}}, r"\$\.context\.memory_share"),
        ({"context": {"low_water": 0.8}}, r"low_water . summary_step .* - at `\$\.context`"),
        ({"decode": {"replicas": "two"}}, r"\$\.decode\.replicas"),
        ({"decode": {"replica": 2}}, r"unknown field `replica` - at `\$\.decode`"),
        ({"ingress": {"cpus": -0.5}}, r"\$\.ingress\.cpus"),
        ({"slo": {"batch": {"ttft_s": 0, "ttft_per_prefill": 0, "tpot_s": 1}}}, r"\$\.slo\.batch\.ttft_s"),
        ({"slo": {"bulk": {}}}, r"unknown field `bulk` - at `\$\.slo`"),
        ({"ingress": {"keep_receipts": -1}}, r"\$\.ingress\.keep_receipts"),
        ({"prefil": {}}, "unknown field `prefil`"),
        ({"decode": {"tiers": {"dram_gib": 0}}}, r"\$\.decode\.tiers\.dram_gib"),
        ({"decode": {"tiers": {"dram": 1}}}, r"unknown field `dram` - at `\$\.decode\.tiers`"),
        ({"decode": {"tiers": {"dram_gib": 1, "disk": {"path": "/kv"}}}}, r"`gib` - at `\$\.decode\.tiers\.disk`"),
        ({"decode": {"tiers": {"dram_gib": 1, "disk": {"gib": 1}}}}, r"`path` - at `\$\.decode\.tiers\.disk`"),
        ({"decode": {"tiers": {"dram_gib": 1, "disk": {"path": "/kv", "gib": 0}}}}, r"\$\.decode\.tiers\.disk\.gib"),
        (
            {"decode": {"tiers": {"dram_gib": 1, "disk": {"path": "kv", "gib": 1}}}},
            r"path: .* must be absolute.* at `\$\.decode\.tiers\.disk`",
        ),
        (
            {"prefill": {"env": {"BATON_CLUSTER_SECRET": "sesame"}}},
            r"BATON_CLUSTER_SECRET must not be set here: Ray's dashboard.* - at `\$\.prefill`",
        ),
        (
            {"decode": {"env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.9.9.9"}}},
            r"VLLM_NIXL_SIDE_CHANNEL_HOST is set by Baton: `network\.host` .* at `\$\.decode`",
        ),
        (
            {"decode": {"grammars": {"burst_ms": 1000}}},
            r"one step take 30 s, .* stall_timeout_s, 15 s, .* at `\$\.decode`",
        ),
        (
            {"prefill": {"tiers": {"disk": {"path": "/kv", "gib": 1}}}},
            r"disk needs dram_gib: .* at `\$\.prefill\.tiers`",
        ),
        ({"scheduler": {"max_indexed_blocks": 1000}}, r"`int` >= 1024 - at `\$\.scheduler\.max_indexed_blocks`"),
    ],
    ids=str,
)
def test_args_out_of_range_or_unknown_are_refused_with_their_path(args: dict[str, Any], path: str) -> None:
    with pytest.raises(ValueError, match=path):
        a_config(**args)


def test_objectives_of_one_class_are_changed_and_the_others_kept() -> None:
    slo = a_config(slo={"batch": {"ttft_s": 60, "ttft_per_prefill": 0, "tpot_s": 1}}).slo
    assert slo.of(SloClass.BATCH) == Objective(ttft_s=60, ttft_per_prefill=0, tpot_s=1)
    assert slo.standard == SloConfig().standard


def test_args_without_a_model_are_refused() -> None:
    with pytest.raises(ValueError, match="missing required field `model`"):
        parse({})


def test_pool_has_the_shared_engine_arguments_under_its_own() -> None:
    config = a_config(engine={"dtype": "bfloat16", "max_num_seqs": 8}, decode={"engine": {"max_num_seqs": 64}})
    assert config.pool(config.prefill).engine["max_num_seqs"] == 8
    assert config.pool(config.decode).engine == {
        "model": "org/model",
        "served_model_name": ["model"],
        "dtype": "bfloat16",
        "max_num_seqs": 64,
        "prefix_caching_hash_algo": "sha256",
        "enable_mfu_metrics": False,
        "kv_cache_metrics": True,
    }


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"decode": {"engine": {"block_size": 32}}}, "decode.engine: block_size must be the same everywhere"),
        (
            {"prefill": {"engine": {"prefix_match_unit": 8}}},
            "prefill.engine: prefix_match_unit must be the same everywhere",
        ),
        ({"engine": {"prefix_match_unit": 8}}, "engine: prefix_match_unit"),
        ({"prefill": {"env": {"PYTHONHASHSEED": "0"}}}, "prefill: env: with PYTHONHASHSEED"),
    ],
)
def test_what_would_make_engines_and_ingress_hash_prompts_differently_is_refused(
    args: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        a_config(**args)


def test_ingress_hashes_blocks_of_the_engines_size() -> None:
    assert a_config(engine={"block_size": 32}).block_size == 32
    assert a_config().block_size == 16


def test_pool_keeps_what_is_not_the_engine_s() -> None:
    config = a_config(decode={"replicas": 3, "env": {"UCX_TLS": "tcp"}})
    pool = config.pool(config.decode)
    assert (pool.replicas, pool.env) == (3, {"UCX_TLS": "tcp"})


def test_engines_know_the_reasoning_parser_of_the_ingress() -> None:
    config = a_config(ingress={"reasoning_parser": "qwen3"})
    assert config.pool(config.decode).engine["reasoning_parser"] == "qwen3"
    assert "reasoning_parser" not in config.shared_engine


def test_served_name_replaces_the_model_s_own() -> None:
    config = a_config(served_model_name="small")
    assert config.model_name == "small"
    assert config.pool(config.decode).engine["served_model_name"] == ["small"]


def test_model_folder_of_the_repository_is_found_wherever_it_is() -> None:
    assert Path(resolve_model("conf")) == REPO_ROOT / "conf"
    assert resolve_model("org/model") == "org/model"


def test_config_survives_the_wire() -> None:
    config = a_config(engine={"dtype": "bfloat16"}, ingress={"allow_path_header": True})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=AppConfig) == config


@pytest.mark.parametrize("name", ["alice", "0123456789abcde", "0123456789ABCDEF", "anonymous\n", ""])
def test_tenant_whose_name_is_none_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ValueError, match="tenants"):
        a_config(state={"tenants": {name: {"retention_days": 1}}})


def test_what_is_not_said_of_a_tenant_is_as_of_all() -> None:
    config = a_config(
        state={"max_tenant_bytes": 2048, "retention_days": 5, "tenants": {"anonymous": {"max_bytes": None}}}
    ).state
    assert (config.max_bytes_of("anonymous"), config.retention_days_of("anonymous")) == (None, 5)
    assert (config.max_bytes_of("f" * 16), config.retention_days_of("f" * 16)) == (2048, 5)


def test_cell_runs_on_the_nodes_that_have_its_name() -> None:
    config = a_config(cells={"names": ["a", "b"], "label": "zone"}, decode={"label_selector": {"gpu": "big"}})
    of_b = config.on_nodes_of(CellName("b"))
    assert of_b.scheduler.label_selector == of_b.prefill.label_selector == {"zone": "b"}
    assert of_b.decode.label_selector == {"gpu": "big", "zone": "b"}
    assert of_b.ingress.label_selector == {}


def test_pools_that_size_themselves_start_within_their_bounds() -> None:
    scaling = {"prefill": {"max": 2}, "decode": {"min": 2, "max": 4}}
    config = a_config(scaling=scaling, decode={"replicas": 2})
    assert config.scaling is not None and config.scaling.may_be_empty is None
    with pytest.raises(ValueError, match=r"decode: replicas is 1, .* scaling\.decode allows 2 to 4"):
        a_config(scaling=scaling)


def test_one_pool_may_be_empty_and_not_both() -> None:
    config = a_config(scaling={"prefill": {"min": 0, "max": 2}, "decode": {"max": 4}})
    assert config.scaling is not None and config.scaling.may_be_empty is Pool.PREFILL
    with pytest.raises(ValueError, match="one pool must keep a worker"):
        a_config(scaling={"prefill": {"min": 0, "max": 2}, "decode": {"min": 0, "max": 4}})


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"peaks": [{"start": "8:30", "end": "9:00"}]}, "HH:MM"),
        ({"peaks": [{"start": "08:30", "end": "09:00", "decode": 9}]}, "raise max"),
        ({"target": 1.0}, "target"),
        ({"decode": {"min": 5, "max": 4}}, "min is 5 and max is 4"),
        ({"speed": 1}, "speed"),
    ],
)
def test_scaling_that_cannot_work_is_refused_with_the_reason(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        a_config(scaling={"prefill": {"max": 2}, "decode": {"max": 4}} | wrong)
