"""Compaction items: summaries that clients keep and send back. A client can neither read nor change the summary."""

from base64 import b64decode, b64encode

from api.state.encryption.tenant_keys import TenantKey
from api.state.postgres.stores.items import Item, aside
from api.state.postgres.tenant_transaction import TenantTransaction
from cluster.errors import InvalidRequest, ServingError, StateUnavailable

_PLACE = "compaction"
_VERSION_BYTES = 4


def sealed_summary(key: TenantKey, summary: str) -> str:
    """The `encrypted_content` of a compaction item."""
    version = key.version.to_bytes(_VERSION_BYTES, "big")
    return b64encode(version + key.seal(summary.encode(), _PLACE)).decode()


async def opened(transaction: TenantTransaction, items: list[Item]) -> list[Item]:
    """The items, with a `summary` in each compaction. Raises InvalidRequest for a compaction of another tenant or
    server.
    """
    compactions = [item for item in items if item["type"] == "compaction"]
    try:
        contents = [_content(item) for item in compactions]
        by_version = await transaction.keys(version for version, _ in contents)
        texts = await aside(
            len(contents),
            sum(len(text) for _, text in contents),
            lambda: [by_version[version].unseal(text, _PLACE).decode() for version, text in contents],
        )
    except StateUnavailable:
        raise
    except (ValueError, ServingError) as error:
        raise InvalidRequest(
            "the encrypted_content of a compaction must be as this server has returned it",
            "encrypted_content",
            "invalid_value",
        ) from error
    summaries = iter(texts)
    return [item | {"summary": next(summaries)} if item["type"] == "compaction" else item for item in items]


def _content(item: Item) -> tuple[int, bytes]:
    """The version of the key, and the sealed summary."""
    content = b64decode(item["encrypted_content"], validate=True)
    return int.from_bytes(content[:_VERSION_BYTES], "big"), content[_VERSION_BYTES:]
