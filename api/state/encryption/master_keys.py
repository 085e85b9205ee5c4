"""The source of the master key: a key management service that the config names, the environment, or a file."""

import os
from importlib import import_module
from pathlib import Path

from api.state.encryption.tenant_keys import LocalMasterKey, MasterKey
from cluster.config.environment import MASTER_KEY_VARIABLE


def master_key(factory: str | None, folder: Path) -> MasterKey:
    """`factory`: "package.module:callable"; None if the config names no factory. `folder`: for a new key file.

    Raises:
        ValueError: the given master key is not valid.
        OSError: the key file cannot be read or written.
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
            f"{MASTER_KEY_VARIABLE} must be a key of 64 hexadecimal digits, or several, separated by commas ({error})"
        ) from error


def _made_by(factory: str) -> MasterKey:
    module, _, name = factory.partition(":")
    try:
        made = getattr(import_module(module), name)()
    except Exception as error:  # the factory is not Baton's code and may raise anything
        raise ValueError(
            f"state.master_key: {factory} returns no master key ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(made, MasterKey):
        raise ValueError(f"state.master_key: {factory} returns {made!r}, which lacks name, wrap or unwrap")
    return made
