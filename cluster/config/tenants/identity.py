"""The config section `identity:`."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cluster.config.network import is_loopback
from cluster.config.state import TenantName

RightName = Literal["inference", "state:read", "state:write", "safety:review", "usage:read"]
"""What a credential may do (api/identity/rights.py)."""
SigningAlgorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Algorithms with a public key. A secret that the issuer and Baton share would let Baton's operators make tokens."""
ClaimName = Annotated[str, Meta(min_length=1, max_length=256)]
_PLAIN_HTTP = re.compile(r"http://(\[[^]]*\]|[^:/?#]*)")
OPEN_ACCESS = "everyone who reaches this service may use it without a key"


class OidcConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenID Connect issuer whose tokens are accepted beside API keys."""

    issuer: Annotated[str, Meta(min_length=1, max_length=2048)]
    """The issuer: exactly what the claim `iss` of its tokens has."""
    audience: Annotated[str, Meta(min_length=1, max_length=2048)]
    """What the claim `aud` must have. Tokens that the issuer has made for other services are refused."""
    jwks_url: Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s#@]*)?\Z", max_length=2048)]
    """Where the issuer publishes its public keys: `jwks_uri` of its `/.well-known/openid-configuration`. It must be
    https, except on a loopback address: whoever can change the answer can make tokens.
    """
    algorithms: Annotated[tuple[SigningAlgorithm, ...], Meta(min_length=1)] = ("RS256", "ES256")
    """The algorithms of signatures that are accepted."""
    tenant_claim: ClaimName = "tenant"
    """The claim that names the tenant. A dot leads into an object, as in `realm_access.team`, unless there is a claim
    with the whole name.
    """
    tenants: dict[str, TenantName] = {}
    """The tenant's id by the value of the claim. If it is empty, the value is the id itself: then whoever may set the
    claim at the issuer may choose any tenant.
    """
    project_claim: ClaimName | None = None
    """The claim that has the id of the project. Without one, or in a token without it, the tenant's default project is
    used.
    """
    rights_claim: ClaimName | None = None
    """The claim that has the rights: a list, or a text with spaces between them, such as `scope`. Without one, tokens
    have `default_rights`.
    """
    rights: dict[str, list[RightName]] = {}
    """Rights by a value of the claim. If it is empty, the values are the names of rights. Other values count for
    nothing.
    """
    default_rights: Annotated[tuple[RightName, ...], Meta(min_length=1)] = ("inference", "state:read", "state:write")
    """The rights of a token if there is no `rights_claim`."""
    end_user_claim: ClaimName = "sub"
    """The claim that names the end user, whom the limits of end users count for."""
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 30.0
    """How far the clocks of the issuer and of an ingress may differ, in seconds. More accepts tokens for longer after
    their end; less refuses new tokens if a clock is late.
    """

    def __post_init__(self) -> None:
        unsafe = _PLAIN_HTTP.match(self.jwks_url)
        if unsafe is not None and not is_loopback(unsafe[1].strip("[]")):
            raise ValueError("jwks_url must begin with https://, except on a loopback address")


class IdentityConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may use the service (docs/tenants.md)."""

    required: bool = True
    """Whether each request needs a credential. If not, all requests without one are one tenant together, and any text
    that is no API key of this service, such as `unused`, names a tenant. Neither has limits. API keys are still
    checked.
    """
    open_access: Literal["everyone who reaches this service may use it without a key"] | None = None
    """The sentence "everyone who reaches this service may use it without a key" is needed, word by word, where
    `required` is false and `ingress.host` is not a loopback address.
    """
    offline_s: Annotated[float, Meta(ge=0, le=86400)] = 300.0
    """How long keys that an ingress replica knows are accepted while it cannot reach PostgreSQL, in seconds. Longer
    bridges longer outages, and lets a key that was revoked meanwhile work for longer on such a replica; shorter refuses
    all requests sooner.
    """
    oidc: OidcConfig | None = None
    """None accepts API keys alone."""

    def refusal(self, host: str) -> str | None:
        """Why this section does not fit to an ingress that listens on `host`. None if it does."""
        if self.required and self.open_access is not None:
            return "leave open_access out, or set required to false: with both, it is not clear what is meant"
        if not self.required and not is_loopback(host) and self.open_access is None:
            return (
                f"required is false and ingress.host is {host}: set required to true, or listen on 127.0.0.1, or add "
                f'open_access: "{OPEN_ACCESS}"'
            )
        return None
