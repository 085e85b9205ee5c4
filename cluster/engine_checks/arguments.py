"""The check of names and types of engine arguments against vLLM's own, before any engine starts.

vLLM finds a wrong argument while an engine starts, minutes later and in every replica, and its error rarely names the
place in the configuration.
"""

import dataclasses
import difflib
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from cluster.config.application import AppConfig
from cluster.config.engine_arguments import EngineArguments
from cluster.repository import REPO_ROOT
from cluster.uncollected import uncollected

KNOWN: dict[str, Any] = {
    "attention_backend": str,
    "block_size": int,
    "distributed_executor_backend": str,
    "dtype": Literal["auto", "bfloat16", "float16", "float32"],
    "enforce_eager": bool,
    "gpu_memory_utilization": float,
    "kv_cache_memory_bytes": int,
    "max_model_len": int,
    "max_num_batched_tokens": int,
    "max_num_seqs": int,
    "tensor_parallel_size": int,
    "use_tqdm_on_load": bool,
}
"""Engine arguments that most configurations have, with types that vLLM has for them too. To ask vLLM is to import it,
which takes many seconds of CPU.
"""
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
    if all(map(_is_known, sections.values())):
        return
    with uncollected():
        from vllm.engine.arg_utils import AsyncEngineArgs
    types_of_vllm = {field.name: field.type for field in dataclasses.fields(AsyncEngineArgs)}
    for place, engine in sections.items():
        for name, value in engine.items():
            _check(f"{place}: {name}", name, value, types_of_vllm)
    for place, pool in (("prefill.engine", config.prefill), ("decode.engine", config.decode)):
        try:
            AsyncEngineArgs(**{**config.pool(pool).engine, **_ANY_FOLDER})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place}, with the shared `engine`: vLLM refuses it: {error}") from error


def _is_known(engine: EngineArguments) -> bool:
    try:
        return all(msgspec.convert(value, KNOWN[name]) == value for name, value in engine.items())
    except (KeyError, msgspec.ValidationError):
        return False


def _check(place: str, name: str, value: Any, types_of_vllm: Mapping[str, Any]) -> None:
    if name not in types_of_vllm:
        close = difflib.get_close_matches(name, types_of_vllm, n=1)
        raise ValueError(f"{place}: vLLM has no such engine argument{f': is it {close[0]}?' if close else ''}")
    if value is None or not _is_plain(types_of_vllm[name]):
        return  # None stands for vLLM's default; vLLM converts what is not plain
    try:
        msgspec.convert(value, types_of_vllm[name])
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
