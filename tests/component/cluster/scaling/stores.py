"""A store in place of Ray's key-value store."""

import pytest

from cluster.scaling import published_targets

Store = dict[tuple[bytes, str], bytes]
"""Values by namespace and key."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    values: Store = {}

    def put(key: str, value: bytes, *, overwrite: bool, namespace: bytes) -> None:
        assert overwrite
        values[namespace, key] = value

    monkeypatch.setattr(published_targets, "_internal_kv_put", put)
    monkeypatch.setattr(published_targets, "_internal_kv_get", lambda key, *, namespace: values.get((namespace, key)))
    return values
