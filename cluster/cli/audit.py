"""`baton audit`: checks and exports the audit log of safety decisions, and decides on appeals, with or without a
running service.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import yaml

from api.state.lifecycle import ChatState
from api.state.postgres.audit_chain import Link
from api.state.postgres.audit_rows import StoredAudit
from api.state.postgres.stores.appeals import AppealStatus
from api.state.postgres.stores.audit import Verified, no_events
from api.state.stores import Stores
from api.wire.pages import Page
from cluster.cli.conf_option import add_conf, config_of
from cluster.cli.tenant_overrides import add_changes, changes_of, has_changes
from cluster.config.state import StateConfig
from cluster.errors import Conflict, NotFound, ServingError
from cluster.services.failure import ServiceFailed

APPEALS_AT_ONCE = 100
"""Appeals that are read in one transaction. More is faster; fewer takes less memory."""
_HEAD = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")

Work = Callable[[Stores], Awaitable[int]]
"""Returns the exit status."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_audit = parser.add_subparsers(required=True, metavar="command")
    verify = of_audit.add_parser(
        "verify",
        help="check that no safety event was changed or deleted",
        description="Walks along the hash chain of each tenant, and prints the number of its events and its head. Ends "
        "with 1 if a chain is broken. Note the heads in another place: a later check with --noted finds a log that was "
        "put back to an earlier state, or deleted as a whole.",
    )
    verify.add_argument("--tenant", help="name of the tenant, as `baton tenant` prints it (default: all tenants)")
    verify.add_argument(
        "--noted", type=_link, metavar="SEQUENCE:HASH", help="a head of the tenant that was printed earlier"
    )
    add_conf(verify, _verify)
    export = of_audit.add_parser("export", help="print the safety events of a tenant as JSON lines, the oldest first")
    export.add_argument("--tenant", required=True, help="name of the tenant, as `baton tenant` prints it")
    export.add_argument("--evidence", action="store_true", help="with the texts that were kept")
    add_conf(export, _export)
    appeals = of_audit.add_parser("appeals", help="print the open appeals of a tenant as JSON lines, the oldest first")
    appeals.add_argument("--tenant", required=True, help="name of the tenant, as `baton tenant` prints it")
    add_conf(appeals, _appeals)
    decide = of_audit.add_parser("decide", help="decide on an appeal; the decision becomes a safety event")
    decide.add_argument("appeal", help="id of the appeal")
    decide.add_argument("decision", choices=[AppealStatus.UPHELD, AppealStatus.OVERTURNED], type=AppealStatus)
    decide.add_argument("--tenant", required=True, help="name of the tenant, as `baton tenant` prints it")
    decide.add_argument("--reviewer", required=True, help="who decides")
    decide.add_argument("--note", default="", help="what the client is told")
    add_changes(decide)
    add_conf(decide, _decide)


def _link(text: str) -> Link:
    """Raises argparse.ArgumentTypeError."""
    if (found := _HEAD.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError("a head is a sequence number, a colon and a hash")
    return Link(int(found[1]), bytes.fromhex(found[2]))


def _verify(arguments: argparse.Namespace) -> int:
    if arguments.noted is not None and arguments.tenant is None:
        print("baton: --noted needs --tenant", file=sys.stderr)
        return 2

    async def work(stores: Stores) -> int:
        audit = stores.audit
        if arguments.tenant is not None:
            return _told(arguments.tenant, await audit.verify(arguments.tenant, arguments.noted))
        status = 0
        for tenant in await audit.tenants():
            try:
                status |= _told(tenant, await audit.verify(tenant))
            except (Conflict, NotFound):
                print(f"{tenant}: is being erased")
        return status

    return _done(arguments, work)


def _told(tenant: str, found: Verified) -> int:
    """Print what was found. Returns the exit status."""
    head = "unknown" if found.head is None else f"{found.head.sequence}:{found.head.hash.hex()}"
    if found.broken is None:
        print(f"{tenant}: {found.num_rows} events, head {head}, ok")
        return 0
    broken = found.broken
    print(f"{tenant}: {found.num_rows} events up to {head}, BROKEN at event {broken.sequence}: {broken.why}")
    return 1


def _export(arguments: argparse.Namespace) -> int:
    async def work(stores: Stores) -> int:
        audit = stores.audit
        if arguments.tenant not in await audit.tenants():
            raise no_events(arguments.tenant)
        async for stored in audit.rows(arguments.tenant):
            print(json.dumps(_line(stored, has_evidence=arguments.evidence)))
        return 0

    return _done(arguments, work)


def _appeals(arguments: argparse.Namespace) -> int:
    async def work(stores: Stores) -> int:
        page = Page(None, APPEALS_AT_ONCE, False)
        while True:
            found = await stores.appeals.find(arguments.tenant, page, AppealStatus.OPEN)
            for appeal in found.data:
                review = None if appeal.review is None else json.loads(appeal.review)
                print(json.dumps(appeal._asdict() | {"review": review}, default=str))
            if not found.has_more:
                return 0
            page = Page(found.data[-1].id, APPEALS_AT_ONCE, False)

    return _done(arguments, work)


def _decide(arguments: argparse.Namespace) -> int:
    if has_changes(arguments) and arguments.decision is not AppealStatus.OVERTURNED:
        print("baton: --allow and --threshold need a decision that overturns", file=sys.stderr)
        return 2

    async def work(stores: Stores) -> int:
        changes = [
            *(("allow", term) for term in arguments.allow),
            *(("threshold", f"{category}={threshold}") for category, threshold in arguments.threshold),
        ]
        asked = (arguments.tenant, arguments.appeal, arguments.decision, arguments.reviewer, arguments.note, changes)
        with changes_of(arguments) if changes else nullcontext():
            decided = await stores.appeals.decide(*asked)
            print(f"{decided.id}: {decided.status}")
        return 0

    return _done(arguments, work)


def _line(stored: StoredAudit, *, has_evidence: bool) -> dict[str, Any]:
    row = stored.row
    line = row._asdict() | {
        "verdicts": json.loads(row.verdicts),
        "text_mac": None if row.text_mac is None else row.text_mac.hex(),
        "evidence_mac": None if row.evidence_mac is None else row.evidence_mac.hex(),
        "hash": stored.hash.hex(),
    }
    if has_evidence:
        evidence = stored.evidence()
        line["evidence"] = None if evidence is None else evidence.decode(errors="replace")
    return line


def _done(arguments: argparse.Namespace, work: Work) -> int:
    try:
        return asyncio.run(_with_state(config_of(arguments).state, work))
    except (OSError, ValueError, LookupError, RuntimeError, yaml.YAMLError, ServiceFailed, ServingError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return 1


async def _with_state(config: StateConfig, work: Work) -> int:
    state = ChatState(config)
    try:
        await state.look()
        return await work(state.stores)
    finally:
        await state.close()
