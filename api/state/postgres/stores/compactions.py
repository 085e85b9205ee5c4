"""Compaction items: summaries that clients keep and send back without being able to read or change them."""

from base64 import b64decode, b64encode

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.postgres.database import Transaction
from api.state.postgres.stores.items import Item, aside
from cluster.errors import InvalidRequest, ServingError, StateUnavailable

_PLACE = "compaction"
_VERSION_BYTES = 4


def sealed_summary(key: TenantKey, summary: str) -> str:
    """An item's `encrypted_content`."""
    version = key.version.to_bytes(_VERSION_BYTES, "big")
    return b64encode(version + key.seal(summary.encode(), _PLACE)).decode()


async def opened(transaction: Transaction, keys: TenantKeys, tenant: str, items: list[Item]) -> list[Item]:
    """The compactions among the items with their `summary`. Raises InvalidRequest for one that is not the tenant's."""
    compactions = [item for item in items if item["type"] == "compaction"]
    try:
        contents = [_content(item) for item in compactions]
        by_version = {
            version: await keys.of_version(transaction, tenant, version) for version in {one[0] for one in contents}
        }
        texts = await aside(
            len(contents),
            sum(len(text) for _, text in contents),
            lambda: [by_version[version].unseal(text, _PLACE).decode() for version, text in contents],
        )
    except StateUnavailable:
        raise
    except (ValueError, ServingError) as error:
        raise InvalidRequest(
            "a compaction's encrypted_content must be what this server has given", "encrypted_content", "invalid_value"
        ) from error
    summaries = iter(texts)
    return [item | {"summary": next(summaries)} if item["type"] == "compaction" else item for item in items]


def _content(item: Item) -> tuple[int, bytes]:
    """The version of its key, and what is sealed."""
    content = b64decode(item["encrypted_content"], validate=True)
    return int.from_bytes(content[:_VERSION_BYTES], "big"), content[_VERSION_BYTES:]
