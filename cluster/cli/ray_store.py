"""Ray's key-value store, for a command that Ray has not started. The command does not join Ray's cluster."""

import logging
import socket

from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.services import get_ray_address_from_environment
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # it is made by Cython
from ray.exceptions import RayError
from ray.experimental.internal_kv import _initialize_internal_kv

from cluster.cell_states import CellStates
from cluster.messages.ids import CellName
from cluster.serve_context import cell_states, registry_of

REACH_TIMEOUT_S = 5.0
"""Time in which Ray must accept a connection, in seconds. Ray's own client tries for 40. Longer delays the error of a
wrong address; shorter fails on a slow network.
"""


def cell_states_in(address: str | None, application: str, cell: CellName) -> CellStates:
    """Which cells of an application take no new requests, in the Ray at `address`. Without it, the address is
    RAY_ADDRESS, or that of the Ray on this machine. Raises OSError if Ray does not answer, and ValueError if it has
    never had the cell.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)  # it would warn that it uses the token of this machine
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    found = address or get_ray_address_from_environment("auto", None)
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{found!r} is not an address of Ray: give HOST:PORT, such as 127.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), REACH_TIMEOUT_S).close()
        _initialize_internal_kv(GcsClient(address=found))
        registered = registry_of(application, cell).newest()
    except (OSError, RayError, OverflowError) as error:
        raise OSError(f"Ray does not answer at {found}: {error}") from error
    if registered is None:
        raise ValueError(
            f"the Ray at {found} has no cell {cell!r} of the application {application!r}: give the address of the "
            "service's Ray with --ray or RAY_ADDRESS"
        )
    return cell_states(application)
