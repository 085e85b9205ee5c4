"""Who asks: what every layer below the edge sees of the sender of a request. Pure."""

from typing import Any

import msgspec

from api.identity.caller import NO_KEY, Caller
from api.identity.rights import ALL_RIGHTS, Right
from api.identity.settings import NO_LIMITS, NO_SETTINGS, TenantSettings
from cluster.config.tenants.limits import Limits
from cluster.errors import Forbidden

NAMED_MODELS = 10
"""Models of a key that an error names. More makes errors long; fewer leaves the reader without the name that is right.
"""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    """The id of the tenant. Empty where the service asks for no credential."""
    project: str
    """The id of the project."""
    key: str
    """The id of the API key. Empty for a token of an OIDC issuer."""
    key_lineage: str = ""
    """The id of the first key of the rotations that have made this one. Empty without an API key."""
    rights: frozenset[Right]
    models: frozenset[str] | None = None
    """The models that may be used; None for all."""
    key_limits: Limits = NO_LIMITS
    project_limits: Limits = NO_LIMITS
    settings: TenantSettings = NO_SETTINGS
    """The tenant's limits, those of its end users and models, its weight, its best SLO class, and whether it shares
    public prefixes.
    """
    end_user: str | None = None
    """Whom the issuer of a token names as its user. An API key names nobody."""

    def caller(self, end_user: str) -> Caller:
        """`end_user`: as the request names it. The issuer of a token knows better."""
        return Caller(
            tenant=self.tenant or NO_KEY,
            project=self.project,
            key=self.key,
            key_lineage=self.key_lineage,
            end_user=end_user if self.end_user is None else self.end_user,
        )

    @property
    def sender(self) -> str:
        """The client behind the credential, in its tenant: its API key with those that rotations have made of it, or
        the user of a token.
        """
        return f"key {self.key_lineage}" if self.key else f"user {self.project} {self.end_user or ''}"

    def require(self, right: Right, otherwise: str = "") -> None:
        """Raises Forbidden without the right. `otherwise`: what else the client may do, as in `, or send less`."""
        if right not in self.rights:
            raise Forbidden(
                f"this credential does not have the right '{right}', which this request needs: use an API key that has "
                f"it, or ask the operator of this service for it{otherwise}",
                None,
                "insufficient_permissions",
            )

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def require_model(self, name: Any) -> None:
        """`name`: as a request has it; None if it names no model, which means the model that the service prefers.
        Raises Forbidden if the model may not be used.
        """
        if self.models is not None and not (isinstance(name, str) and name in self.models):
            named = ", ".join(sorted(self.models)[:NAMED_MODELS])
            more = ", and others" if len(self.models) > NAMED_MODELS else ""
            why = f"may not use the model '{name}'" if isinstance(name, str) else "must name its model"
            raise Forbidden(f"this credential {why}: it may use {named}{more}", "model", "model_not_allowed")


ANYBODY = Principal(tenant="", project="", key="", rights=ALL_RIGHTS)
"""Who asks a service that asks for no credential."""
