"""The RayService for KubeRay: its fields are those that KubeRay 1.7 has, and its parts fit each other. `make clouds`
checks it against KubeRay's own schema, if that is given (docs/clusters.md).
"""

import copy
import math
import re
from pathlib import PurePath
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cluster_files.node_types import (
    RAY_SERVICE,
    RAY_UP,
    REQUIRED,
    ROOT,
    SCHEDULER_CPUS,
    application,
    documents,
    ray_service,
    serve_config,
)


def fields(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT: dict[str, Any] = {"type": "string"}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
CREDENTIAL = fields(value=TEXT, valueFrom=fields(secretKeyRef=fields(("name", "key"), name=TEXT, key=TEXT)))
TEMPLATE = fields(("spec",), metadata={"type": "object"}, spec={"type": "object"})
GROUP = {"resources": TEXTS, "rayStartParams": TEXTS, "labels": TEXTS, "template": TEMPLATE}
CLUSTER = fields(
    ("headGroupSpec", "workerGroupSpecs", "rayVersion"),
    rayVersion=TEXT,
    enableInTreeAutoscaling={"type": "boolean"},
    autoscalerOptions=fields(version={"enum": ["v1", "v2"]}, idleTimeoutSeconds=COUNT),
    authOptions=fields(mode={"enum": ["disabled", "token"]}, secretName=TEXT),
    gcsFaultToleranceOptions=fields(
        backend={"enum": ["redis", "rocksdb"]},
        redisAddress=TEXT,
        redisUsername=CREDENTIAL,
        redisPassword=CREDENTIAL,
        externalStorageNamespace=TEXT,
        storage=fields(size=TEXT, claimName=TEXT, storageClassName=TEXT, deletionPolicy=TEXT),
    ),
    headGroupSpec=fields(("template", "rayStartParams"), **GROUP),
    workerGroupSpecs={
        "type": "array",
        "items": fields(
            ("groupName", "template", "rayStartParams", "minReplicas", "maxReplicas"),
            groupName=TEXT,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            **GROUP,
        ),
    },
)
SPEC = fields(
    ("serveConfigV2", "rayClusterConfig"),
    upgradeStrategy=fields(type={"enum": ["NewCluster", "NewClusterWithIncrementalUpgrade", "None"]}),
    serveConfigV2=TEXT,
    rayClusterConfig=CLUSTER,
)
"""The fields of a RayService of KubeRay 1.7 that the file uses or may use."""


def groups() -> dict[str, dict[str, Any]]:
    cluster = ray_service()["spec"]["rayClusterConfig"]
    workers = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"], **workers}


def containers() -> dict[str, dict[str, Any]]:
    return {name: group["template"]["spec"]["containers"][0] for name, group in groups().items()}


def test_fields_are_those_of_a_rayservice() -> None:
    jsonschema.validate(ray_service()["spec"], SPEC)


def test_misspelt_field_is_refused() -> None:
    spec = copy.deepcopy(ray_service()["spec"])
    spec["rayClusterConfig"]["gcsFaultToleranceOption"] = spec["rayClusterConfig"].pop("gcsFaultToleranceOptions")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spec, SPEC)


def test_misspelt_field_of_the_other_store_is_refused() -> None:
    spec = copy.deepcopy(ray_service()["spec"])
    password = {"valueFrom": {"secretKeyRef": {"name": "baton", "key": "redis_password"}}}
    redis = {"backend": "redis", "redisAddress": "redis:6379", "redisPassword": password}
    spec["rayClusterConfig"]["gcsFaultToleranceOptions"] = redis
    jsonschema.validate(spec, SPEC)
    spec["rayClusterConfig"]["gcsFaultToleranceOptions"] = redis | {"redisPasswords": password}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spec, SPEC)


def keys(config: Any, path: str = "") -> set[str]:
    """The paths of all keys of a config. An operator sets values, and may take `network` out."""
    if isinstance(config, list):
        return {found for number, item in enumerate(config) for found in keys(item, f"{path}[{number}]")}
    if not isinstance(config, dict) or path.endswith((".resources", ".env")):
        return {path}
    return {found for name, value in config.items() if name != "network" for found in keys(value, f"{path}.{name}")}


def test_application_has_the_keys_of_the_one_of_ray_up() -> None:
    ours = yaml.safe_load(ray_service()["spec"]["serveConfigV2"])
    assert {key for key in keys(ours) if "allowed_hosts" not in key} == {
        key for key in keys(serve_config()) if "allowed_hosts" not in key
    }


def test_service_leads_to_the_ingress_pods() -> None:
    (service,) = [document["spec"] for document in documents() if document["kind"] == "Service"]
    labels = groups()["ingress"]["template"]["metadata"]["labels"]
    assert service["type"] == "LoadBalancer"
    assert service["selector"].items() <= labels.items()
    assert not any(
        service["selector"].items() <= group["template"]["metadata"]["labels"].items()
        for name, group in groups().items()
        if name != "ingress"
    )
    assert [port["targetPort"] for port in service["ports"]] == [application("kuberay").ingress.port]


def test_workers_have_readiness_probes_of_their_own() -> None:
    """KubeRay's own probe asks Serve's HTTP proxy, which is off: such pods would never be ready."""
    probes = {name: container.get("readinessProbe", {}) for name, container in containers().items() if name != "head"}
    assert probes.pop("ingress")["httpGet"] == {"path": "/healthz", "port": application("kuberay").ingress.port}
    assert all("local_raylet_healthz" in probe["exec"]["command"][-1] for probe in probes.values())


def test_all_processes_read_the_secret() -> None:
    secret = ray_service()["spec"]["rayClusterConfig"]["authOptions"]["secretName"]
    assert all(container["envFrom"] == [{"secretRef": {"name": secret}}] for container in containers().values())


def test_passwords_are_not_in_the_config_that_ray_shows() -> None:
    state = application("kuberay").state
    assert (state.database_url, state.redis_url) == (None, None)


def test_ingress_pods_have_room_for_the_replicas_that_an_update_starts_first() -> None:
    config, group = application("kuberay").ingress, groups()["ingress"]
    num_replicas = math.ceil(config.replicas * (1 + config.max_surge_percent / 100))
    on_a_pod = int((float(group["resources"]["CPU"]) - SCHEDULER_CPUS) // config.cpus)
    assert config.replicas < num_replicas <= group["replicas"] * on_a_pod


def test_pods_end_after_their_workers_have_drained() -> None:
    config = application("kuberay")
    drain_s = max(config.prefill.drain_s, config.decode.drain_s, config.ingress.drain_s)
    for group in groups().values():
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > drain_s


def test_all_pods_are_under_the_policy() -> None:
    assert all(group["template"]["metadata"]["labels"]["app"] == "baton" for group in groups().values())


def volumes() -> list[dict[str, Any]]:
    return [volume for group in groups().values() for volume in group["template"]["spec"].get("volumes", [])]


def test_pods_of_baton_have_the_certificate_where_the_application_has_tls() -> None:
    tls = application("kuberay").network.tls
    secrets = [volume for volume in volumes() if "secret" in volume]
    assert (tls is not None) == (len(secrets) == len(groups()) - 1)
    for name, container in containers().items():
        places = [mount["mountPath"] for mount in container.get("volumeMounts", []) if mount["name"] == "tls"]
        assert tls is None or name == "head" or [str(PurePath(tls.key).parent)] == places


def test_files_of_secrets_are_readable_by_the_pods_user_alone() -> None:
    """The image has no USER, so its processes run as root."""
    assert not re.search(r"(?m)^USER", (ROOT / "conf/kuberay/Dockerfile").read_text())
    assert {volume["secret"]["defaultMode"] for volume in volumes() if "secret" in volume} <= {0o400}


def test_pods_go_on_without_a_head_for_as_long_as_nodes_of_ray_up() -> None:
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    (of_ray_up,) = re.findall(rf"(?m)^{name}=(\d+)$", (RAY_UP / "cluster.env.example").read_text())
    for pod, container in containers().items():
        found = [variable["value"] for variable in container["env"] if variable["name"] == name]
        assert found == ([] if pod == "head" else [of_ray_up]), pod


def test_example_of_the_secret_is_what_kubectl_takes() -> None:
    """kubectl neither removes quotes nor replaces variables, and takes a file of variables alone."""
    example = (ROOT / "conf/kuberay/cluster.env.example").read_text()
    lines = [line for line in example.splitlines() if line and not line.startswith("#")]
    of_ray_up = {name for name in REQUIRED if name != "RAY_AUTH_TOKEN"}
    assert {line.partition("=")[0] for line in lines} == of_ray_up | {"auth_token"}
    assert not re.search(r"[\"'$ ]", "".join(lines))
    head = RAY_SERVICE.read_text().partition("apiVersion")[0]
    (command,) = re.findall(r"create secret generic baton (.+)", head)
    assert command == "--from-env-file=conf/kuberay/cluster.env" and command in example
