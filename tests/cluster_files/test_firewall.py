"""The firewall rules of the cluster files open what docs/network.md lists, and nothing else."""

import re
from ipaddress import ip_network
from typing import Any

import yaml

from tests.cluster_files.node_types import RAY_UP, ROOT, application, documents, ray_up

PAGE = (ROOT / "docs/network.md").read_text().partition("\n## Firewall\n")[2].partition("\n## ")[0]
NFTABLES, KUBERNETES = re.findall(r"```\w*\n(.*?)```", PAGE, re.DOTALL)
GOOGLE_S_HEALTH_CHECKS = "130.211.0.0/22,35.191.0.0/16"
OPEN_TO_OTHERS = {int(port) for port in re.findall(r"tcp dport (\d+) accept", NFTABLES)}
"""SSH for the operator and the ingress for the load balancer, as the page has them."""


def resources(kind: str) -> dict[str, dict[str, Any]]:
    """The resources of the stack that are of this kind."""
    stack = yaml.safe_load((RAY_UP / "aws-network.yaml").read_text())["Resources"]
    return {name: one["Properties"] for name, one in stack.items() if one["Type"] == kind}


def test_page_opens_ssh_and_the_ingress() -> None:
    assert {22, application().ingress.port} == OPEN_TO_OTHERS


def test_groups_of_aws_open_no_other_port() -> None:
    groups = resources("AWS::EC2::SecurityGroup")
    opened = {
        name: {port for rule in group["SecurityGroupIngress"] for port in range(rule["FromPort"], rule["ToPort"] + 1)}
        for name, group in groups.items()
    }
    assert opened == {"Nodes": {22}, "Ingress": {8000}, "Clients": {443}}
    assert opened["Nodes"] | opened["Ingress"] == OPEN_TO_OTHERS
    (to_ingress,) = groups["Ingress"]["SecurityGroupIngress"]
    assert to_ingress["SourceSecurityGroupId"] == {"Fn::GetAtt": ["Clients", "GroupId"]}
    for rules in ("AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress"):
        (among,) = resources(rules).values()
        assert among["GroupId"] == among.get("SourceSecurityGroupId", among.get("DestinationSecurityGroupId"))


def test_sources_of_the_rules_are_no_strangers() -> None:
    (ssh,) = resources("AWS::EC2::SecurityGroup")["Nodes"]["SecurityGroupIngress"]
    assert ssh["CidrIp"] == {"Ref": "AdminRange"}
    assert "Default" not in yaml.safe_load((RAY_UP / "aws-network.yaml").read_text())["Parameters"]["AdminRange"]
    script = (RAY_UP / "gcp-network.sh").read_text()
    assert set(re.findall(r"--source-ranges=(\S+)", script)) == {'"$ADMIN_RANGE"', GOOGLE_S_HEALTH_CHECKS}
    sources = {
        policy["podSelector"]["matchLabels"].get("baton/role"): rule["from"]
        for policy in (document["spec"] for document in documents() if document["kind"] == "NetworkPolicy")
        for rule in policy["ingress"]
    }
    assert sources[None] == [{"podSelector": {"matchLabels": {"app": "baton"}}}]
    (operator,) = sources["head"]
    assert operator["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert all(set(source) <= {"ipBlock", "namespaceSelector", "podSelector"} for source in sources["ingress"])
    blocks = [source["ipBlock"]["cidr"] for source in sources["ingress"] if "ipBlock" in source]
    assert not [block for block in blocks if ip_network(block).prefixlen == 0]


def test_ray_makes_no_group_on_aws() -> None:
    """Ray's own group lets the whole world reach SSH. Ray makes one if a node type names no group."""
    config = ray_up("aws")
    of_cluster = {config["metadata"]["nodes_group"]}
    for name, node_type in config["available_node_types"].items():
        node = node_type["node_config"]
        groups = set(node.get("SecurityGroupIds", []))
        groups.update(group for interface in node.get("NetworkInterfaces", []) for group in interface["Groups"])
        assert groups == of_cluster | ({config["metadata"]["ingress_group"]} if name == "ingress" else set())


def test_rules_of_gcp_open_no_other_port() -> None:
    script = (RAY_UP / "gcp-network.sh").read_text().replace("\\\n", " ")
    rules = [dict(re.findall(r"--([\w-]+)=(\S+)", rule)) for rule in re.findall(r"firewall-rules create (.+)", script)]
    among = [rule for rule in rules if rule["allow"] == "all"]
    assert all(rule["source-tags"] == rule["target-tags"] == "baton" for rule in among)
    others = {rule["allow"]: rule["target-tags"] for rule in rules if rule not in among}
    assert others == {"tcp:22": "baton", "tcp:8000": "baton-ingress"}
    assert {int(allowed.removeprefix("tcp:")) for allowed in others} == OPEN_TO_OTHERS


def test_tags_of_gcp_nodes_are_those_of_the_rules() -> None:
    tags = {
        name: set(node_type["node_config"]["tags"]["items"])
        for name, node_type in ray_up("gcp")["available_node_types"].items()
    }
    both = {"baton", "baton-ingress"}
    assert tags == {name: both if name == "ingress" else {"baton"} for name in tags}


def test_no_node_has_a_public_address() -> None:
    assert ray_up("aws")["provider"]["use_internal_ips"] and ray_up("gcp")["provider"]["use_internal_ips"]
    nodes = [node_type["node_config"] for node_type in ray_up("gcp")["available_node_types"].values()]
    assert not any("accessConfigs" in interface for node in nodes for interface in node["networkInterfaces"])


def test_policies_of_kubernetes_open_the_ports_of_the_page() -> None:
    policies = [document["spec"] for document in documents() if document["kind"] == "NetworkPolicy"]
    (example,) = yaml.safe_load_all(KUBERNETES)
    opened = {
        port["port"]: policy["podSelector"]["matchLabels"].get("baton/role")
        for policy in policies
        for rule in policy["ingress"]
        for port in rule.get("ports", [])
    }
    assert opened == {8265: "head", 8000: "ingress"}
    assert set(opened) == {port["port"] for rule in example["spec"]["ingress"] for port in rule.get("ports", [])}
    portless = [rule for policy in policies for rule in policy["ingress"] if "ports" not in rule]
    assert portless == [{"from": [{"podSelector": {"matchLabels": {"app": "baton"}}}]}]
    assert all(policy["policyTypes"] == ["Ingress"] for policy in policies)


def test_load_balancers_pass_the_api_and_the_health_check_alone() -> None:
    (rule,) = resources("AWS::ElasticLoadBalancingV2::ListenerRule").values()
    (condition,) = rule["Conditions"]
    assert condition["PathPatternConfig"]["Values"] == ["/v1/*", "/healthz"]
    (listener,) = resources("AWS::ElasticLoadBalancingV2::Listener").values()
    assert [action["Type"] for action in listener["DefaultActions"]] == ["fixed-response"]
    assert "paths: [/v1/*, /healthz]" in (RAY_UP / "gcp-network.sh").read_text()


def test_load_balancers_ask_the_ingress_for_its_health() -> None:
    port = application().ingress.port
    (targets,) = resources("AWS::ElasticLoadBalancingV2::TargetGroup").values()
    assert (targets["Port"], targets["HealthCheckPath"]) == (port, "/healthz")
    assert f"--port={port} --request-path=/healthz" in (RAY_UP / "gcp-network.sh").read_text()
