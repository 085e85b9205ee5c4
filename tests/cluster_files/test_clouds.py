"""The cluster files against stand-ins of the clouds: moto for AWS, Google's description of its API, and the schemas of
Kubernetes. Only `make clouds` runs these: they need packages that Baton does not.
"""

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cluster_files.node_types import RAY_UP, documents, ray_service, ray_up

pytestmark = [
    pytest.mark.clouds,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # of the packages that are tested with
]
CRD_VARIABLE = "BATON_KUBERAY_CRD"
"""Name of the variable with the path of KubeRay's CRD of a RayService."""
REGION = "us-west-2"
PREFILL, HEAD, INGRESS = "prefill", "head", "ingress"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    moto = pytest.importorskip("moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray writes the key that it makes there
    with moto.mock_aws():
        yield


def client(service: str) -> Any:
    import boto3

    return boto3.client(service, region_name=REGION)


def stack() -> dict[str, str]:
    """The outputs of the stack, made in a VPC with two public subnets, and a private one, `subnet`."""
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=f"{REGION}{zone}")["Subnet"]
        for number, zone in enumerate("aab")
    ]
    private, *public = [subnet["SubnetId"] for subnet in subnets]
    given = {
        "Vpc": vpc,
        "PublicSubnets": ",".join(public),
        "Certificate": client("acm").request_certificate(DomainName="baton.example.com")["CertificateArn"],
        "AdminRange": "10.0.9.0/24",
    }
    formation = client("cloudformation")
    formation.create_stack(
        StackName="baton",
        TemplateBody=(RAY_UP / "aws-network.yaml").read_text(),
        Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in given.items()],
        Capabilities=["CAPABILITY_IAM"],
    )
    (made,) = formation.describe_stacks(StackName="baton")["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in made["Outputs"]} | {"subnet": private}


def filled_in(outputs: dict[str, str]) -> dict[str, Any]:
    """conf/ray-up/aws.yaml with an operator's values."""
    image = client("ec2").describe_images()["Images"][0]["ImageId"]
    values = {
        "subnet": outputs["subnet"],
        "nodes_group": outputs["NodesGroup"],
        "ingress_group": outputs["IngressGroup"],
        "head_profile": outputs["HeadProfile"],
        "ingress_profile": outputs["IngressProfile"],
        "cpu_image": image,
        "gpu_image": image,
    }
    text = (RAY_UP / "aws.yaml").read_text()
    for name, value in ray_up("aws")["metadata"].items():
        if name in values:
            text = text.replace(value, values[name])
    return dict(yaml.safe_load(text))


def test_stack_opens_ssh_and_the_ingress_alone(aws: None) -> None:
    outputs = stack()
    groups = client("ec2").describe_security_groups(GroupIds=[outputs["NodesGroup"], outputs["IngressGroup"]])
    opened = {
        group["GroupId"]: [
            (rule.get("FromPort"), [pair["GroupId"] for pair in rule["UserIdGroupPairs"]])
            for rule in group["IpPermissions"]
        ]
        for group in groups["SecurityGroups"]
    }
    assert sorted(opened[outputs["NodesGroup"]], key=str) == [(22, []), (None, [outputs["NodesGroup"]])]
    ((port, sources),) = opened[outputs["IngressGroup"]]
    assert port == 8000 and len(sources) == 1


def test_ray_bootstraps_aws_and_starts_a_node_of_each_type(aws: None) -> None:
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler._private.util import prepare_config, validate_config

    outputs = stack()
    config = prepare_config(filled_in(outputs))
    validate_config(config)
    groups_before = len(client("ec2").describe_security_groups()["SecurityGroups"])
    config = bootstrap_aws(AWSNodeProvider.fillout_available_node_types_resources(config))
    assert len(client("ec2").describe_security_groups()["SecurityGroups"]) == groups_before
    for name, node_type in ray_up("aws")["available_node_types"].items():
        kept = config["available_node_types"][name]["resources"]
        assert kept.items() >= node_type["resources"].items()
    provider = _get_node_provider(config["provider"], config["cluster_name"], use_cache=False)
    for name, node_type in config["available_node_types"].items():
        provider.create_node(node_type["node_config"], {"ray-user-node-type": name}, 1)
    reservations = client("ec2").describe_instances()["Reservations"]
    instances = {
        next(tag["Value"] for tag in instance["Tags"] if tag["Key"] == "ray-user-node-type"): instance
        for reservation in reservations
        for instance in reservation["Instances"]
    }
    assert set(instances) == set(config["available_node_types"])
    assert {instance["SubnetId"] for instance in instances.values()} == {outputs["subnet"]}
    assert instances[INGRESS]["IamInstanceProfile"]["Arn"] == outputs["IngressProfile"]
    assert instances[HEAD]["IamInstanceProfile"]["Arn"] == outputs["HeadProfile"]


@pytest.mark.parametrize("node_type", ["head", "ingress", "prefill", "decode"])
def test_node_is_a_request_that_aws_knows(node_type: str) -> None:
    botocore = pytest.importorskip("botocore.session")
    validate = pytest.importorskip("botocore.validate").ParamValidator().validate
    shape = botocore.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
    request = copy.deepcopy(ray_up("aws")["available_node_types"][node_type]["node_config"])
    (request["SubnetId"],) = request.pop("SubnetIds", ["subnet-1"])
    assert not validate(request | {"MinCount": 1, "MaxCount": 1}, shape).generate_report()
    assert validate(request | {"MinCount": 1, "MaxCount": 1, "ImageID": "a"}, shape).has_errors()


def discovery_schema(name: str) -> dict[str, Any]:
    """A strict JSON Schema of an object of Google's compute API."""
    import googleapiclient

    document = Path(googleapiclient.__path__[0]) / "discovery_cache/documents/compute.v1.json"
    schemas = json.loads(document.read_text())["schemas"]
    return {"$ref": f"#/$defs/{name}", "$defs": {key: strict(schema) for key, schema in schemas.items()}}


def strict(schema: Any) -> Any:
    """Google's form of a schema as JSON Schema that allows no unknown key."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": f"#/$defs/{schema['$ref']}"}
    made: dict[str, Any] = {key: schema[key] for key in ("type", "enum") if schema.get(key, "any") != "any"}
    if "items" in schema:
        made["items"] = strict(schema["items"])
    if "properties" in schema:
        made["properties"] = {name: strict(one) for name, one in schema["properties"].items()}
        made["additionalProperties"] = False
    elif "additionalProperties" in schema:
        made["additionalProperties"] = strict(schema["additionalProperties"])
    return made


@pytest.mark.parametrize("node_type", ["head", "ingress", "prefill", "decode"])
def test_node_is_an_instance_that_google_knows(node_type: str) -> None:
    """The body is the one that Ray sends for a node of this type."""
    pytest.importorskip("googleapiclient")
    from ray.autoscaler._private.gcp.node import GCPCompute

    sent: list[dict[str, Any]] = []

    class Recorder:
        _http = None

        def instances(self) -> "Recorder":
            return self

        def insert(self, body: dict[str, Any], **_: Any) -> "Recorder":
            sent.append(body)
            return self

        def execute(self, **_: Any) -> dict[str, Any]:
            return {}

    provider = ray_up("gcp")["provider"]
    compute = GCPCompute(Recorder(), provider["project_id"], provider["availability_zone"], "baton")
    compute.get_new_authorized_http = lambda http: None
    node = ray_up("gcp")["available_node_types"][node_type]["node_config"]
    compute.create_instance(node, {"ray-node-name": "ray-baton-worker"}, wait_for_operation=False)
    (body,) = sent
    schema = discovery_schema("Instance")
    jsonschema.validate(body, schema)
    for wrong in ({"machineTypes": "n2"}, {"networkInterfaces": [{"nicType": "RDMA"}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(body | wrong, schema)


def pods() -> dict[str, dict[str, Any]]:
    cluster = ray_service()["spec"]["rayClusterConfig"]
    groups = {"head": cluster["headGroupSpec"]} | {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    return {
        name: {"apiVersion": "v1", "kind": "Pod"} | copy.deepcopy(group["template"]) for name, group in groups.items()
    }


def test_kubernetes_knows_the_objects_and_the_pods() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    plain = [document for document in documents() if document["kind"] != "RayService"]
    for thing in (*plain, *pods().values()):
        kubernetes.validate(thing, "1.37", strict=True)
    wrong = pods()[PREFILL]
    wrong["spec"]["container"] = wrong["spec"].pop("containers")
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(wrong, "1.37", strict=True)


@pytest.mark.skipif(CRD_VARIABLE not in os.environ, reason=f"{CRD_VARIABLE} does not name KubeRay's CRD")
def test_kuberay_knows_the_rayservice() -> None:
    crd = yaml.safe_load(Path(os.environ[CRD_VARIABLE]).read_text())
    (version,) = [version for version in crd["spec"]["versions"] if version["name"] == "v1"]
    schema = closed(version["schema"]["openAPIV3Schema"])
    jsonschema.validate(ray_service(), schema)
    wrong = ray_service()
    wrong["spec"]["rayClusterConfig"]["gcsFaultTolerance"] = {}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def closed(schema: Any) -> Any:
    """A schema of Kubernetes as JSON Schema that allows no unknown key."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items() if key not in ("properties", "default")}
    if made.pop("x-kubernetes-int-or-string", False):
        made = {"type": ["integer", "string"]}
    if isinstance(properties := schema.get("properties"), dict):
        made["properties"] = {name: closed(one) for name, one in properties.items()}
        if "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    return made
