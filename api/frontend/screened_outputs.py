"""vLLM's request outputs of a generation that is screened: what they say is what has left."""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from copy import copy

from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.tokenizers import TokenizerLike

from api.frontend.release import Release, SequencePiece
from api.safety.pieces import Piece
from cluster.messages.generation import TokenDelta
from router.session.session import Session

OutputOf = Callable[[TokenDelta], RequestOutput | None]
"""The request output of a delta."""
UNKNOWN_LOGPROB = -9999.0
"""The log probability of a token that the model has not generated: of a mask, in OpenAI's words "very unlikely"."""


async def screened(
    session: Session, release: Release, output_of: OutputOf, tokenizer: TokenizerLike
) -> AsyncGenerator[RequestOutput, None]:
    """`output_of`: of outputs that have what is new since the last one. Raises ServingError."""
    shell: RequestOutput | None = None
    """What the outputs of all sequences have in common."""
    still_open = set(range(release.num_sequences))
    silent = set(still_open)
    """Sequences that no token has left of."""

    def pieces_of(delta: TokenDelta) -> Iterator[SequencePiece]:
        nonlocal shell
        output = output_of(delta)
        if output is None:
            return
        if shell is None:
            shell = copy(output)
        for completion in output.outputs:
            yield SequencePiece(completion.index, _piece(completion))

    async with aclosing(release.pieces(session, pieces_of)) as pieces:
        async for sequence, piece in pieces:
            assert shell is not None
            output = copy(shell)
            if sequence in silent and piece.finish_reason is not None and not piece.token_ids:
                piece = _audible(piece, tokenizer)
            output.outputs = [_completion(sequence, piece, tokenizer)]
            silent.discard(sequence)
            if piece.finish_reason is not None:
                still_open.discard(sequence)
            output.finished = not still_open
            yield output
            shell.prompt_logprobs = None  # vLLM's first output has them


def _piece(completion: CompletionOutput) -> Piece:
    logprobs = None if completion.logprobs is None else list(completion.logprobs)
    return Piece(completion.text, completion.token_ids, logprobs, completion.finish_reason, completion.stop_reason)


def _audible(piece: Piece, tokenizer: TokenizerLike) -> Piece:
    """The piece with a token without text: vLLM's streams do not end a sequence that has no token."""
    return piece._replace(token_ids=[tokenizer.eos_token_id], logprobs=None if piece.logprobs is None else [None])


def _completion(sequence: int, piece: Piece, tokenizer: TokenizerLike) -> CompletionOutput:
    logprobs = piece.logprobs
    if logprobs is not None:
        tokens = zip(piece.token_ids, logprobs, strict=True)
        logprobs = [_unknown(token, tokenizer) if known is None else known for token, known in tokens]
    return CompletionOutput(
        index=sequence,
        text=piece.text,
        token_ids=list(piece.token_ids),
        cumulative_logprob=None,
        logprobs=logprobs,
        finish_reason=piece.finish_reason,
        stop_reason=piece.stop_reason,
    )


def _unknown(token: int, tokenizer: TokenizerLike) -> dict[int, Logprob]:
    text = "" if token == tokenizer.eos_token_id else tokenizer.decode([token])
    return {token: Logprob(UNKNOWN_LOGPROB, decoded_token=text)}
