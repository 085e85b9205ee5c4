"""Compaction items: summaries that clients keep and send back without being able to read or change them."""

from base64 import b64decode, b64encode
from typing import Any

from api.state.database import Transaction
from api.state.sealing import TenantKey, TenantKeys
from cluster.errors import InvalidRequest, ServingError

Item = dict[str, Any]

_PLACE = "compaction"
_VERSION_BYTES = 4


def sealed_summary(key: TenantKey, summary: str) -> str:
    """An item's `encrypted_content`."""
    version = key.version.to_bytes(_VERSION_BYTES, "big")
    return b64encode(version + key.seal(summary.encode(), _PLACE)).decode()


async def opened(transaction: Transaction, keys: TenantKeys, tenant: str, items: list[Item]) -> list[Item]:
    """The compactions among the items with their `summary`. Raises InvalidRequest for one that is not the tenant's."""
    return [
        item | {"summary": await _summary(transaction, keys, tenant, item)} if item["type"] == "compaction" else item
        for item in items
    ]


async def _summary(transaction: Transaction, keys: TenantKeys, tenant: str, item: Item) -> str:
    try:
        content = b64decode(item["encrypted_content"], validate=True)
        version, sealed = int.from_bytes(content[:_VERSION_BYTES], "big"), content[_VERSION_BYTES:]
        key = await keys.of_version(transaction, tenant, version)
        return key.unseal(sealed, _PLACE).decode()
    except (ValueError, ServingError) as error:
        raise InvalidRequest(
            "a compaction's encrypted_content must be what this server has given", "encrypted_content", "invalid_value"
        ) from error
