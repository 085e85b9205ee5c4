"""The transfer path of an engine, cut: every TCP packet from and to the ports that its core has open is dropped, by
iptables rules of this machine. NIXL, UCX and the handshake of the connector use the core's ports; the connections
between Baton's processes belong to the worker in front of it, and stay.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

CHAIN = "BATON_DRILL"
MAX_PORTS_PER_RULE = 15
"""The most ports that iptables' `multiport` takes."""


@contextmanager
def cut(core: psutil.Process) -> Iterator[None]:
    """Packets between processes of one machine all leave through OUTPUT, so that rules there cut both directions."""
    require_iptables()
    heal()  # what a drill that was killed has left
    ports = sorted({connection.laddr.port for connection in core.net_connections(kind="tcp")})
    assert ports, "an engine core without a port has no transfer path"
    try:
        _iptables("-N", CHAIN)
        for first in range(0, len(ports), MAX_PORTS_PER_RULE):
            some = ",".join(map(str, ports[first : first + MAX_PORTS_PER_RULE]))
            _iptables("-A", CHAIN, "-p", "tcp", "-m", "multiport", "--ports", some, "-j", "DROP")
        _iptables("-I", "OUTPUT", "-j", CHAIN)
        yield
    finally:
        heal()


def heal() -> None:
    """Take the rules out, where there are any."""
    if subprocess.run(["iptables", "-w", "-S", CHAIN], capture_output=True).returncode == 0:
        subprocess.run(["iptables", "-w", "-D", "OUTPUT", "-j", CHAIN], capture_output=True)
        _iptables("-F", CHAIN)
        _iptables("-X", CHAIN)


def require_iptables() -> None:
    assert shutil.which("iptables"), "cutting the network needs iptables: apt-get install iptables"
    listed = subprocess.run(["iptables", "-w", "-S", "OUTPUT"], capture_output=True, text=True)
    assert listed.returncode == 0, f"cutting the network needs root and CAP_NET_ADMIN: {listed.stderr}"


def _iptables(*arguments: str) -> None:
    subprocess.run(["iptables", "-w", *arguments], check=True, capture_output=True)
