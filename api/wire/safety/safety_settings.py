"""What a request asks of safety for itself: `safety_settings`, shaped like Gemini's, and OpenAI's `moderation`.

Categories have OpenAI's names, or Gemini's with or without `HARM_CATEGORY_`. A name of OpenAI's is one category, also
where Gemini has the same name without the prefix. `_GEMINI` has the categories of each name of Gemini's. Names and
thresholds may be in any case.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from api.wire.safety.moderation_results import CATEGORIES, FURTHER, MAX_MODEL
from cluster.errors import InvalidRequest

Body = dict[str, Any]

SETTINGS, MODERATION = "safety_settings", "moderation"
"""The fields of a request body."""

_GEMINI = {
    "harassment": ("harassment", "harassment/threatening"),
    "hate_speech": ("hate", "hate/threatening"),
    "sexually_explicit": ("sexual",),
    "dangerous_content": (
        "illicit",
        "illicit/violent",
        "self-harm",
        "self-harm/instructions",
        "self-harm/intent",
    ),
    "jailbreak": ("prompt-injection",),
}
"""Gemini's categories as ours. Gemini has none for violence, and protects minors whatever a request asks. It has more
categories, which have no counterpart here and are refused: civic integrity, and those of images.
"""
_NAMES: Mapping[str, tuple[str, ...]] = {
    **_GEMINI,
    **{f"harm_category_{name}": categories for name, categories in _GEMINI.items()},
    **{category: (category,) for category in (*CATEGORIES, *FURTHER)},
}
_THRESHOLDS: Mapping[str, str | None] = {
    "off": "off",
    "block_none": "off",
    "block_only_high": "block_only_high",
    "block_medium_and_above": "block_medium_and_above",
    "block_low_and_above": "block_low_and_above",
    "harm_block_threshold_unspecified": None,
}
"""Ours for each spelling. None if the category keeps the threshold that it has without the request."""
_CATEGORY_FIELDS = ("category", "type")
"""Names of the field that names the category. Gemini has used both."""
_MODES = {"score": False, "block": True}

MAX_SETTINGS = len(CATEGORIES) + len(FURTHER)
"""Entries of `safety_settings`, at most: one for each category. A longer list would have a category twice."""


class ModerationAsked(NamedTuple):
    """The field `moderation` of a request: the results of moderation belong into its answer."""

    model: str
    blocks_input: bool
    """Whether an input that is flagged is refused. If not, it is only scored."""
    blocks_output: bool


class SafetySettings(NamedTuple):
    thresholds: dict[str, str]
    """The thresholds that the request asks for, by category. Other categories keep the threshold that they have without
    the request.
    """
    moderation: ModerationAsked | None


def settings_in(body: Any) -> SafetySettings | None:
    """The settings in a request body. None if there are none, and if the body is not an object. Raises InvalidRequest
    for a field that is wrong.
    """
    given = {name: body.get(name) for name in (SETTINGS, MODERATION)} if isinstance(body, dict) else {}
    if all(value is None for value in given.values()):
        return None
    settings, moderation = given[SETTINGS], given[MODERATION]
    return SafetySettings(
        thresholds={} if settings is None else _thresholds(settings),
        moderation=None if moderation is None else _moderation(moderation),
    )


def without_settings(body: Any) -> Any:
    """A copy of a request body without the settings, which vLLM does not know. A body that is no object is returned as
    it is.
    """
    if not isinstance(body, dict):
        return body
    return {name: value for name, value in body.items() if name not in (SETTINGS, MODERATION)}


def _thresholds(entries: Any) -> dict[str, str]:
    if not isinstance(entries, list):
        raise InvalidRequest(f"{SETTINGS} must be a list of objects", SETTINGS, "invalid_type")
    if not entries:
        raise InvalidRequest(f"{SETTINGS} is empty", SETTINGS, "empty_array")
    if len(entries) > MAX_SETTINGS:
        raise InvalidRequest(
            f"{SETTINGS} has {len(entries)} entries, and may have {MAX_SETTINGS}", SETTINGS, "array_above_max_length"
        )
    thresholds: dict[str, str | None] = {}
    for number, entry in enumerate(entries):
        param = f"{SETTINGS}[{number}]"
        fields = _object(entry, param, (*_CATEGORY_FIELDS, "threshold"))
        path, categories = _categories(fields, param)
        threshold = _threshold(fields.get("threshold"), f"{param}.threshold")
        for category in categories:
            if category in thresholds:
                raise InvalidRequest(f"{SETTINGS} has {category} twice", path, "invalid_value")
            thresholds[category] = threshold
    return {category: threshold for category, threshold in thresholds.items() if threshold is not None}


def _categories(fields: Body, param: str) -> tuple[str, tuple[str, ...]]:
    """The path of the field that names the category, and the categories that are meant."""
    named = [name for name in _CATEGORY_FIELDS if name in fields]
    path = f"{param}.{named[0] if named else _CATEGORY_FIELDS[0]}"
    if not named:
        raise InvalidRequest(f"{path} is missing", path, "missing_required_parameter")
    if len(named) > 1:
        raise InvalidRequest(f"{param} may have a category or a type, not both", path, "invalid_value")
    name = fields[named[0]]
    if not isinstance(name, str):
        raise InvalidRequest(f"{path} must be a string", path, "invalid_type")
    if name.lower() not in _NAMES:
        known = ", ".join((*CATEGORIES, *FURTHER, *(f"HARM_CATEGORY_{name.upper()}" for name in _GEMINI)))
        raise InvalidRequest(f"{path} must be one of {known}", path, "invalid_value")
    return path, _NAMES[name.lower()]


def _threshold(value: Any, param: str) -> str | None:
    if value is None:
        raise InvalidRequest(f"{param} is missing", param, "missing_required_parameter")
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string", param, "invalid_type")
    if value.lower() not in _THRESHOLDS:
        known = ", ".join(name for name, threshold in _THRESHOLDS.items() if name == threshold)
        raise InvalidRequest(f"{param} must be one of {known}", param, "invalid_value")
    return _THRESHOLDS[value.lower()]


def _moderation(value: Any) -> ModerationAsked:
    fields = _object(value, MODERATION, ("model", "policy"))
    model, path = fields.get("model"), f"{MODERATION}.model"
    if model is None:
        raise InvalidRequest(f"{path} is missing", path, "missing_required_parameter")
    if not isinstance(model, str):
        raise InvalidRequest(f"{path} must be a string", path, "invalid_type")
    if len(model) > MAX_MODEL:
        raise InvalidRequest(f"{path} may have at most {MAX_MODEL} characters", path, "string_above_max_length")
    path = f"{MODERATION}.policy"
    policy = _object(fields.get("policy", {}), path, ("input", "output"))
    return ModerationAsked(
        model,
        blocks_input=_blocks(policy.get("input"), f"{path}.input"),
        blocks_output=_blocks(policy.get("output"), f"{path}.output"),
    )


def _blocks(value: Any, param: str) -> bool:
    """Whether a part of the policy blocks. OpenAI's default is to score."""
    if value is None:
        return False
    mode, path = _object(value, param, ("mode",)).get("mode"), f"{param}.mode"
    if mode is None:
        raise InvalidRequest(f"{path} is missing", path, "missing_required_parameter")
    if not isinstance(mode, str) or mode not in _MODES:
        raise InvalidRequest(f"{path} must be 'score' or 'block'", path, "invalid_value")
    return _MODES[mode]


def _object(value: Any, param: str, known: tuple[str, ...]) -> Body:
    """The fields of an object that are not null. Raises InvalidRequest."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{param} must be an object", param, "invalid_type")
    if unknown := sorted(value.keys() - set(known)):
        raise InvalidRequest(f"unknown parameter: {unknown[0]}", f"{param}.{unknown[0]}", "unknown_parameter")
    return {name: field for name, field in value.items() if field is not None}
