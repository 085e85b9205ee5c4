"""The RayService for KubeRay: its fields are those that KubeRay 1.7 has, and its parts fit each other. `make clouds`
checks it against KubeRay's own schema, if that is given (docs/clusters.md).
"""

import copy
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cluster_files.node_types import application, documents, ray_service, serve_config


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


def test_application_is_that_of_ray_up() -> None:
    assert yaml.safe_load(ray_service()["spec"]["serveConfigV2"]) == serve_config()


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
    assert [port["targetPort"] for port in service["ports"]] == [application().ingress.port]


def test_workers_have_readiness_probes_of_their_own() -> None:
    """KubeRay's own probe asks Serve's HTTP proxy, which is off: such pods would never be ready."""
    probes = {name: container.get("readinessProbe", {}) for name, container in containers().items() if name != "head"}
    assert probes.pop("ingress")["httpGet"] == {"path": "/healthz", "port": application().ingress.port}
    assert all("local_raylet_healthz" in probe["exec"]["command"][-1] for probe in probes.values())


def test_all_processes_read_the_secret() -> None:
    secret = ray_service()["spec"]["rayClusterConfig"]["authOptions"]["secretName"]
    assert all(container["envFrom"] == [{"secretRef": {"name": secret}}] for container in containers().values())


def test_passwords_are_not_in_the_config_that_ray_shows() -> None:
    assert (application().state.database_url, application().state.redis_url) == (None, None)


def test_pods_end_after_their_workers_have_drained() -> None:
    drain_s = max(application().prefill.drain_s, application().decode.drain_s)
    for group in groups().values():
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > drain_s


def test_all_pods_are_under_the_policy() -> None:
    assert all(group["template"]["metadata"]["labels"]["app"] == "baton" for group in groups().values())
