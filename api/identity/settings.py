"""What an operator sets for a tenant, a project or a key: limits of use, a share of the workers, the best SLO class,
and whether the tenant shares public prefixes. Pure.

What is stored is read leniently: a replica ignores a limit that a newer version has introduced. What an operator sends
is read strictly.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cluster.config.tenants.limits import Limits
from cluster.errors import InvalidRequest
from cluster.messages.ids import SloClass

MAX_NAME_CHARS = 200
"""Characters of the name of a tenant, a project, a key or a model. Longer names make lists that nobody can read;
shorter ones refuse names that people use.
"""
MAX_MODELS = 100
"""Models that a key or the limits of a tenant may name. More makes each look-up larger; fewer refuses a cluster with
many models.
"""

Weight = Annotated[float, Meta(gt=0, le=1000)]


LimitChange = int | UnsetType | None
"""A new value of a limit. None sets no limit, and UNSET the default of the config."""

NO_LIMITS = Limits()
"""No limits of its own: those of the defaults."""


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a tenant."""

    limits: Limits = NO_LIMITS
    """Of all that the tenant does."""
    end_user_limits: Limits = NO_LIMITS
    """Of each end user of the tenant."""
    model_limits: dict[str, Limits] = {}
    """Of the tenant's use of single models, by name."""
    weight: Weight = 1.0
    """The tenant's share of the workers while tenants wait for them: one with twice the weight gets twice as much."""
    share_prefixes: bool = False
    """Whether the tenant shares the KV blocks of public prefixes with other tenants that do."""
    best_class: SloClass = SloClass.INTERACTIVE
    """The best SLO class that its requests are served in, whatever they ask for."""

    def served_as(self, asked: SloClass) -> SloClass:
        """The class that a request is served in which asks for this one."""
        return max(asked, self.best_class, key=lambda slo_class: slo_class.rank)

    @property
    def may_tighten(self) -> bool:
        """Whether requests may set objectives that are tighter than those of their class. They would get a better
        class by that.
        """
        return self.best_class.rank == 0

    def __post_init__(self) -> None:
        if len(self.model_limits) > MAX_MODELS:
            raise ValueError(f"model_limits has more than {MAX_MODELS} models")
        for name in self.model_limits:
            check_name(name, "model_limits")


NO_SETTINGS = TenantSettings()


def with_changes(limits: Limits, changes: Mapping[str, LimitChange]) -> Limits:
    """The limits after changes by name. Raises InvalidRequest for a name that is no limit, and for a value out of
    range.
    """
    for name in changes:
        if name not in Limits.__struct_fields__:
            raise _invalid(f"{name!r} is no limit: the limits are {', '.join(Limits.__struct_fields__)}")
    values = {**msgspec.to_builtins(limits), **changes}
    changed: Limits = _read({name: value for name, value in values.items() if value is not UNSET}, Limits)
    return NO_LIMITS if changed == NO_LIMITS else changed  # msgspec leaves out what is the default itself


def limits_of_stored(stored: Any) -> Limits:
    """Raises msgspec.ValidationError for limits that cannot be read."""
    return msgspec.convert(_known(stored), Limits)


def settings_of_stored(stored: Any) -> TenantSettings:
    """Raises msgspec.ValidationError or InvalidRequest for settings that cannot be read."""
    if isinstance(stored, dict):
        stored = {
            **stored,
            **{name: _known(stored[name]) for name in ("limits", "end_user_limits") if name in stored},
        }
        if isinstance(of_models := stored.get("model_limits"), dict):
            stored["model_limits"] = {model: _known(limits) for model, limits in of_models.items()}
    return msgspec.convert(stored, TenantSettings)


def _known(stored: Any) -> Any:
    """Stored limits without those that this version does not have."""
    if not isinstance(stored, dict):
        return stored
    return {name: value for name, value in stored.items() if name in Limits.__struct_fields__}


class SettingsChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator changes of the settings of a tenant. What is not named stays."""

    limits: Mapping[str, LimitChange] = {}
    """Limits by name. So are the next ones."""
    end_user_limits: Mapping[str, LimitChange] = {}
    model_limits: Mapping[str, Mapping[str, LimitChange]] = {}
    """Limits by model and name."""
    weight: float | None = None
    share_prefixes: bool | None = None
    best_class: SloClass | None = None

    def applied_to(self, settings: TenantSettings) -> TenantSettings:
        """The settings after the change. Raises InvalidRequest for a value out of range."""
        models = dict(settings.model_limits)
        for model, changes in self.model_limits.items():
            models[model] = with_changes(models.get(model, NO_LIMITS), changes)
        changed = {
            "limits": with_changes(settings.limits, self.limits),
            "end_user_limits": with_changes(settings.end_user_limits, self.end_user_limits),
            "model_limits": {model: limits for model, limits in models.items() if limits != NO_LIMITS},
            "weight": settings.weight if self.weight is None else self.weight,
            "share_prefixes": settings.share_prefixes if self.share_prefixes is None else self.share_prefixes,
            "best_class": self.best_class or settings.best_class,
        }
        named = {name: value for name, value in changed.items() if value != NO_LIMITS}
        read: TenantSettings = _read(msgspec.to_builtins(named), TenantSettings)
        return read


UNCHANGED = SettingsChange()


def checked_settings(settings: TenantSettings) -> TenantSettings:
    """Settings that an operator has put together. Raises InvalidRequest for a value out of range."""
    return _read(msgspec.to_builtins(settings), TenantSettings)


def check_name(name: str, param: str) -> str:
    """A name that people read: of a tenant, a project, a key or a model. Raises InvalidRequest."""
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidRequest(f"{param} must have 1 to {MAX_NAME_CHARS} characters", param, "invalid_value")
    if not name.isprintable() or name != name.strip():
        raise InvalidRequest(f"{param} must not have control characters, or spaces at its ends", param, "invalid_value")
    return name


def check_models(models: frozenset[str] | None) -> frozenset[str] | None:
    """The models that a key may use; None for all. Raises InvalidRequest."""
    if models is not None:
        if not 0 < len(models) <= MAX_MODELS:
            raise InvalidRequest(f"models must name 1 to {MAX_MODELS} models", "models", "invalid_value")
        for name in models:
            check_name(name, "models")
    return models


def _read(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise _invalid(str(error)) from error


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(why, "limits", "invalid_value")
