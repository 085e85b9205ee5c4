"""A client with limits in some scopes."""

from collections.abc import Mapping

from api.identity.principal import Principal
from api.identity.rights import ALL_RIGHTS
from api.identity.settings import NO_LIMITS, TenantSettings
from api.limits.limits import ScopeKind
from cluster.config.tenants.limits import Limits


def a_limited_principal(
    ids: Mapping[ScopeKind, str], limits: Mapping[ScopeKind, Limits], key: str | None = None, **of_models: Limits
) -> Principal:
    """`ids`: of all scopes but the end user; that of the key is its lineage. `key`: the id of the key, if it is
    another one. `of_models`: limits of further models, by name.
    """
    if ScopeKind.MODEL in limits:
        of_models[ids[ScopeKind.MODEL]] = limits[ScopeKind.MODEL]
    return Principal(
        tenant=ids[ScopeKind.TENANT],
        project=ids[ScopeKind.PROJECT],
        key=key or ids[ScopeKind.KEY],
        key_lineage=ids[ScopeKind.KEY],
        rights=ALL_RIGHTS,
        key_limits=limits.get(ScopeKind.KEY, NO_LIMITS),
        project_limits=limits.get(ScopeKind.PROJECT, NO_LIMITS),
        settings=TenantSettings(
            limits=limits.get(ScopeKind.TENANT, NO_LIMITS),
            end_user_limits=limits.get(ScopeKind.END_USER, NO_LIMITS),
            model_limits=of_models,
        ),
    )
