"""Nodes on this machine for `ray up` (conf/ray-up/local.yaml), made by a Cloud (cloud.py) that must run."""

from pathlib import Path
from typing import Any

import click
from ray.autoscaler._private.command_runner import _with_environment_variables
from ray.autoscaler._private.subprocess_output_util import ProcessRunnerError
from ray.autoscaler.command_runner import CommandRunnerInterface
from ray.autoscaler.node_provider import NodeProvider

from cluster.repository import REPO_ROOT
from tests.nodes.cloud_socket import CloudClient


class NamespaceProvider(NodeProvider):
    """Ray's autoscaler makes one in `ray up`, and one on the head node."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._cloud = CloudClient(str(REPO_ROOT / provider_config["socket"]))

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        return list(self._cloud.names(tag_filters))

    def is_running(self, node_id: str) -> bool:
        return node_id in self._cloud.names({})

    def is_terminated(self, node_id: str) -> bool:
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self._cloud.tags(node_id))

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._cloud.set_tags(node_id, tags)

    def external_ip(self, node_id: str) -> str:
        return str(self._cloud.address(node_id))

    def internal_ip(self, node_id: str) -> str:
        return str(self._cloud.address(node_id))

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any] | None:
        for _ in range(count):
            self._cloud.make_node(tags)
        return None

    def terminate_node(self, node_id: str) -> dict[str, Any] | None:
        self._cloud.stop_node(node_id)
        return None

    def get_command_runner(
        self,
        log_prefix: str,
        node_id: str,
        auth_config: dict[str, Any],
        cluster_name: str,
        process_runner: object,
        use_internal_ip: bool,
        docker_config: dict[str, Any] | None = None,
    ) -> CommandRunnerInterface:
        return NamespaceCommands(self._cloud, node_id)


class NamespaceCommands(CommandRunnerInterface):
    """Runs the autoscaler's commands on a node, as its SSH does on a node of a cloud."""

    def __init__(self, cloud: CloudClient, node_id: str) -> None:
        self._cloud = cloud
        self._node_id = node_id

    def run(  # noqa: PLR0913 - Ray's interface
        self,
        cmd: str | None = None,
        timeout: int = 120,
        exit_on_fail: bool = False,
        port_forward: list[tuple[int, int]] | None = None,
        with_output: bool = False,
        environment_variables: dict[str, object] | None = None,
        run_env: str = "auto",
        ssh_options_override_ssh_key: str = "",
        shutdown_after_run: bool = False,
    ) -> str:
        command = _with_environment_variables(cmd or "true", environment_variables or {})
        status, output = self._cloud.run(self._node_id, command, timeout)
        click.echo(output, nl=False)
        if status and exit_on_fail:
            raise click.ClickException(f"`{cmd}` ended with {status} on {self._node_id}:\n{output}")
        if status:
            raise ProcessRunnerError("Command failed", "ssh_command_failed", code=status, command=command)
        return str(output) if with_output else ""

    def run_rsync_up(self, source: str, target: str, options: dict[str, Any] | None = None) -> None:
        self._cloud.copy(self._node_id, str(Path(source).expanduser()), target)

    def run_rsync_down(self, source: str, target: str, options: dict[str, Any] | None = None) -> None:
        raise click.ClickException("a node shares this machine's files, except for its home")

    def remote_shell_command_str(self) -> str:
        return str(self._cloud.shell(self._node_id))

    def run_init(self, *, as_head: bool, file_mounts: dict[str, str], sync_run_yet: bool) -> bool | None:
        return None
