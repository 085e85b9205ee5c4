"""The model, files, disks, ports and names that a config names, as this machine has them."""

import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage
from urllib.parse import urlsplit

import msgspec
import psutil

from api.identity.admin.admin_key import ADMIN_KEY_FILE
from cluster.config.application import AppConfig
from cluster.config.environment import (
    ADMIN_KEY_VARIABLE,
    DATABASE_URL_VARIABLE,
    LIMITS_REDIS_URL_VARIABLE,
    MASTER_KEY_VARIABLE,
    REDIS_URL_VARIABLE,
    SECRET_VARIABLE,
)
from cluster.config.network import LOOPBACK, TlsConfig
from cluster.doctor.judgement.places import DiskFacts, FileFacts, ModelFacts, PortFacts, TlsFacts
from cluster.network.certificates import Certificates
from cluster.network.interface import own_interface
from cluster.network.secret import MIN_SECRET_CHARS
from cluster.repository import REPO_ROOT, resolve_model

MOST_INDEX_BYTES = 64 << 20
"""Most bytes of a model's JSON file that are read. More lets a wrong path take memory."""
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_GIB = 1 << 30


def model_facts(model: str) -> ModelFacts:
    folder = Path(resolve_model(model))
    if not folder.is_dir():
        folder = _in_hub_cache(model) or folder
    try:
        if not folder.is_dir():
            return ModelFacts(name=model, folder=None)
        missing, weights = _contents(folder)
    except (OSError, msgspec.MsgspecError) as error:
        return ModelFacts(name=model, folder=str(folder), error=str(error))
    return ModelFacts(name=model, folder=str(folder), missing=missing, weights_bytes=weights)


def _contents(folder: Path) -> tuple[list[str], int]:
    """The files that a model folder lacks, and the bytes of its weights. Raises OSError, MsgspecError."""
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        missing.append("a tokenizer")
    if (folder / "config.json").is_file():
        msgspec.json.decode(_read(folder / "config.json"), type=dict)
    shards = {path.name for path in folder.glob("*.safetensors")}
    if (folder / _INDEX).is_file():
        index = msgspec.json.decode(_read(folder / _INDEX), type=dict[str, object])
        mapped = index.get("weight_map")
        shards |= {str(name) for name in mapped.values()} if isinstance(mapped, dict) else set()
    shards = shards or {path.name for path in folder.glob("*.bin")}
    if not shards:
        missing.append("weights (*.safetensors)")
    weights = 0
    for name in sorted(shards):
        file = folder / Path(name).name
        size = file.stat().st_size if file.is_file() else 0
        weights += size
        if not size:
            missing.append(name)
        elif not os.access(file, os.R_OK):
            missing.append(f"{name} (not readable)")
    return missing, weights


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MOST_INDEX_BYTES)


def _in_hub_cache(model: str) -> Path | None:
    """The newest snapshot of a hub model on this machine."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = [*(cache / f"models--{model.replace('/', '--')}" / "snapshots").glob("*")]
    return max(snapshots, key=lambda found: found.stat().st_mtime) if snapshots else None


def port_facts(config: AppConfig) -> list[PortFacts]:
    wanted = (
        ("ingress.port", config.ingress.host, config.ingress.port),
        ("admin.port", config.admin.host, config.admin.port),
    )
    return [_port(key, host, port) for key, host, port in wanted]


def _port(key: str, host: str, port: int) -> PortFacts:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            why = error.strerror or str(error)
            return PortFacts(key=key, host=host, port=port, error=why, taken_by=_listener_on(port))
    return PortFacts(key=key, host=host, port=port)


def _listener_on(port: int) -> str:
    """The process that listens on a port. Empty if it cannot be seen: it may be of another user."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return ""


def key_files(config: AppConfig) -> list[FileFacts]:
    folder = REPO_ROOT / config.state.data_dir
    return [_file(folder / name) for name in (ADMIN_KEY_FILE, "master.key")]


def _file(path: Path) -> FileFacts:
    try:
        return FileFacts(path=str(path), mode=stat.S_IMODE(path.stat().st_mode))
    except FileNotFoundError:
        return FileFacts(path=str(path), mode=None)
    except OSError as error:
        return FileFacts(path=str(path), mode=None, error=error.strerror or "it cannot be read")


def secrets_set() -> dict[str, bool]:
    return {name: bool(os.environ.get(name)) for name in (SECRET_VARIABLE, ADMIN_KEY_VARIABLE, MASTER_KEY_VARIABLE)}


def secret_refusals() -> dict[str, str]:
    """Why the secret of the cluster is not valid. It never has the secret."""
    secret = os.environ.get(SECRET_VARIABLE, "")
    if secret and len(secret) < MIN_SECRET_CHARS:
        return {SECRET_VARIABLE: f"{SECRET_VARIABLE} has {len(secret)} characters, and must have {MIN_SECRET_CHARS}"}
    return {}


def tls_facts(files: TlsConfig | None) -> TlsFacts | None:
    if files is None:
        return None
    try:
        left_s = Certificates(files).contexts().expires_at - time.time()
        return TlsFacts(left_s=left_s, key_mode=stat.S_IMODE(Path(files.key).stat().st_mode))
    except (OSError, ValueError) as error:
        return TlsFacts(error=str(error))


def disk_facts(config: AppConfig) -> list[DiskFacts]:
    disks = [_disk("state.data_dir", REPO_ROOT / config.state.data_dir)]
    for name, pool in (("prefill", config.prefill), ("decode", config.decode)):
        if (tier := pool.tiers.disk) is not None:
            needed = int(tier.gib * _GIB)
            disks.append(msgspec.structs.replace(_disk(f"{name}.tiers.disk", Path(tier.path)), needed_bytes=needed))
    return disks


def _disk(key: str, path: Path) -> DiskFacts:
    """Of a folder, or of the folder in which it will be made."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    try:
        is_writable = os.access(there, os.W_OK | os.X_OK)
        return DiskFacts(key=key, path=str(path), free_bytes=disk_usage(there).free, is_writable=is_writable)
    except OSError as error:
        return DiskFacts(key=key, path=str(path), free_bytes=0, error=error.strerror or str(error))


def state_urls(config: AppConfig) -> dict[str, str]:
    """The URLs of the state by their keys in the config, as the environment replaces them. Those with no server of
    their own are left out. They may have passwords.
    """
    environment, state = os.environ, config.state
    urls = {
        "database_url": environment.get(DATABASE_URL_VARIABLE) or state.database_url,
        "redis_url": environment.get(REDIS_URL_VARIABLE) or state.redis_url,
        "limits_redis_url": environment.get(LIMITS_REDIS_URL_VARIABLE) or state.limits_redis_url,
    }
    return {key: url for key, url in urls.items() if url}


def resolved_names(config: AppConfig) -> dict[str, str | None]:
    """The address of each host that the config and the environment name. None for one that does not resolve."""
    return {name: _address(name) for name in dict.fromkeys(_named_hosts(config))}


def _named_hosts(config: AppConfig) -> Iterator[str]:
    yield from (host for url in state_urls(config).values() if (host := _host_of(url)))
    if config.identity.oidc is not None and (host := _host_of(config.identity.oidc.jwks_url)):
        yield host
    if (ray := os.environ.get("RAY_ADDRESS", "")).count(":") == 1:
        yield ray.partition(":")[0]
    yield socket.gethostname()


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _address(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return None


def network_error(config: AppConfig) -> str:
    """Why network.host cannot be used on this machine. Empty if it can."""
    try:
        own_interface(config.internal_host, LOOPBACK)
    except ValueError as error:
        return str(error)
    return ""
