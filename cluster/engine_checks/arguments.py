"""The check of names and types of engine arguments against vLLM's own, before any engine starts.

vLLM finds a wrong argument while an engine starts, minutes later and in every replica, and its error rarely names the
place in the configuration.
"""

import dataclasses
import difflib
import types
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from vllm.engine.arg_utils import AsyncEngineArgs

from cluster.config.application import AppConfig
from cluster.repository import REPO_ROOT

_TYPES = {field.name: field.type for field in dataclasses.fields(AsyncEngineArgs)}
_ANY_FOLDER = {"model": str(REPO_ROOT), "tokenizer": None}
"""Stands for the model, which vLLM would look up on this node."""
_PLAIN = (Any, bool, dict, float, int, list, set, str, types.NoneType)
_COMPOSED = (Literal, Union, types.UnionType, dict, list, set)


def check_arguments(config: AppConfig) -> None:
    """Check the engine arguments of both pools.

    Raises:
        ValueError: vLLM has no such argument, or its value has another type. The message names the place.
    """
    sections = {
        "engine": config.engine,
        "prefill.engine": config.prefill.engine,
        "decode.engine": config.decode.engine,
    }
    for place, engine in sections.items():
        for name, value in engine.items():
            _check(f"{place}: {name}", name, value)
    for place, pool in (("prefill.engine", config.prefill), ("decode.engine", config.decode)):
        try:
            AsyncEngineArgs(**{**config.pool(pool).engine, **_ANY_FOLDER})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place}, with the shared `engine`: vLLM refuses it: {error}") from error


def _check(place: str, name: str, value: Any) -> None:
    if name not in _TYPES:
        close = difflib.get_close_matches(name, _TYPES, n=1)
        raise ValueError(f"{place}: vLLM has no such engine argument{f': is it {close[0]}?' if close else ''}")
    if value is None or not _is_plain(_TYPES[name]):
        return  # None stands for vLLM's default; vLLM converts what is not plain
    try:
        msgspec.convert(value, _TYPES[name])
    except msgspec.ValidationError as error:
        raise ValueError(f"{place}: {value!r} is not valid: {error}") from error
    except TypeError:  # a union that msgspec cannot tell apart
        return


def _is_plain(hint: Any) -> bool:
    """Whether a type consists of types that YAML has."""
    if get_origin(hint) is Literal:
        return True
    if get_origin(hint) in _COMPOSED:
        return all(map(_is_plain, get_args(hint)))
    return hint in _PLAIN
