"""Where the master key comes from: a key management service that the config names, the environment, or a file."""

import os
from importlib import import_module
from pathlib import Path

from api.state.encryption.tenant_keys import LocalMasterKey, MasterKey
from cluster.config.environment import MASTER_KEY_VARIABLE


def master_key(factory: str | None, folder: Path) -> MasterKey:
    """`factory`: "package.module:callable", where the config names one.

    Raises:
        ValueError: a master key that is none.
        OSError: one cannot be kept.
    """
    given = os.environ.get(MASTER_KEY_VARIABLE)
    if factory is not None:
        if given is not None:
            raise ValueError(f"state.master_key and {MASTER_KEY_VARIABLE} are both set: only one can be the master key")
        return _made_by(factory)
    if given is None:
        return LocalMasterKey.in_file(folder / "master.key")
    try:
        return LocalMasterKey(*map(bytes.fromhex, given.split(",")))
    except ValueError as error:
        raise ValueError(
            f"{MASTER_KEY_VARIABLE} must be 64 hexadecimal digits, and those of keys from before behind a comma "
            f"({error})"
        ) from error


def _made_by(factory: str) -> MasterKey:
    module, _, name = factory.partition(":")
    try:
        made = getattr(import_module(module), name)()
    except Exception as error:  # whatever somebody else's code does
        raise ValueError(
            f"state.master_key: {factory} gives no master key ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(made, MasterKey):
        raise ValueError(f"state.master_key: {factory} gives {made!r}, which lacks name, wrap or unwrap")
    return made
