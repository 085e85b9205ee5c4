"""`make clients`: installs the clients, runs the driver of each against a service, and tells what passes."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from cluster.cli.accounts.first_key import KEY_FILE
from tests.clients.cancelled_answers import CancelledAnswers, Metered
from tests.clients.catalogue import CLIENTS, QUICK, Client, client_named
from tests.clients.environments import install
from tests.clients.running import Endpoint, outcomes, table
from tests.real_cluster.service import CHANGES, Service, merged

KEY_VARIABLE = "BATON_API_KEY"


def main() -> None:
    arguments = parsed()
    clients = chosen(arguments.only)
    for client in clients:
        try:
            if install(client):
                print(f"{client.name}: installed", flush=True)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{client.name} could not be installed: {error}")
    if arguments.install:
        return
    with endpoint(arguments.url) as (pointed_at, own):
        failed = [client.name for client in clients if not passes(client, pointed_at, own)]
    if failed:
        sys.exit(f"not all flows pass: {', '.join(failed)}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make clients", description=__doc__)
    parser.add_argument("--only", default="", help="names of clients with commas between them, or `quick`; else all")
    parser.add_argument(
        "--url", default="", help=f"a running service, with a key in {KEY_VARIABLE}; else one is started"
    )
    parser.add_argument("--install", action="store_true", help="install only")
    return parser.parse_args()


def chosen(names: str) -> list[Client]:
    if names == "quick":
        return [client_named(name) for name in QUICK]
    try:
        return [client_named(name) for name in names.split(",")] if names else list(CLIENTS)
    except ValueError as unknown:
        sys.exit(str(unknown))


def passes(client: Client, pointed_at: Endpoint, own: Metered | None) -> bool:
    """Whether all flows do and, where the service is our `own`, whether it ends the answers that they cancel."""
    answers = CancelledAnswers(own) if own is not None else None
    results = outcomes(client, pointed_at)
    print(table(client, results), flush=True)
    fault = answers.fault(results) if answers is not None else None
    if fault is not None:
        print(f"  FAIL  {fault}", flush=True)
    return fault is None and all(outcome.ok for outcome in results)


@contextmanager
def endpoint(url: str) -> Iterator[tuple[Endpoint, Service | None]]:
    """The running service at this URL, or one that is started for the clients, with keys. That one's metrics can be
    read.
    """
    if url:
        yield endpoint_of(url.removesuffix("/").removesuffix("/v1"), os.environ.get(KEY_VARIABLE, "")), None
        return
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), merged(CHANGES, {"identity": {"required": True}}))
        try:
            service.wait_until_ready()
            yield endpoint_of(service.url, (service.data / KEY_FILE).read_text().strip()), service
        finally:
            left = service.stop()
        if left:
            sys.exit(f"still running after Ctrl-C: {left}")


def endpoint_of(url: str, key: str) -> Endpoint:
    """Exits where the service does not answer, or does not take the key."""
    try:
        answer = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"} if key else {}, timeout=30)
        models = answer.raise_for_status().json()["data"]
    except httpx.HTTPError as error:
        sys.exit(f"{url} cannot be used ({error}); a key is read from {KEY_VARIABLE}")
    return Endpoint(url, key or "unused", models[0]["id"])


if __name__ == "__main__":
    main()
