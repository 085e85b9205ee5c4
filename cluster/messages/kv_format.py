"""What KV blocks look like, as an engine reports it: a decode engine reads blocks of its own format only."""

import msgspec


class KvFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format of an engine's KV blocks."""

    digest: str
    """vLLM's digest of all that it compares before two engines hand over: its version, the model, the types of values,
    the attention backend, the draft model.
    """
    settings: tuple[tuple[str, str], ...] = ()
    """Names and values of what an operator can set of it, to say in which of them two engines differ."""
    num_ranks: int = 1
    """Tensor-parallel ranks of the engine."""
    num_kv_heads: int = 1
    """Key-value heads of the model."""
    is_replicated: bool = False
    """Whether each rank has all values, as with MLA."""
