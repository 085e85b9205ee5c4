"""Which conversations' KV blocks an engine keeps, until when, and what their next prompts say of it. Pure.

A conversation is known by the KV blocks of its last prompt: a later prompt that begins with them is its next step. So
nobody has to name it, and a wrong, late or repeated word about an ending costs hits at most. A prompt that ends with
the same block is no next step but another conversation, as with a short question behind a system prompt. Then the block
names neither. Blocks of a public prefix are those of several tenants, so a prompt of another tenant is no next step.

- `ended`: an answer has ended. If conversations of its kind come back soon, the blocks of prompt and answer are kept.
- `awaits`: the answer has called tools, as is known after its text was read.
- `came`: a prompt has come. If it goes on with a conversation, the time between is learned, and blocks of the former
  state that the prompt does not have any more are dead: they go first. The others are kept until the prompt has them.
- `admitted`: the prompt has its blocks, and nothing is kept for it.
- `expire`: conversations that have not come back are let go, and counted. One that comes back later is still known, and
  lengthens what its kind is kept for.

To keep is an order and no claim: the engine takes kept blocks when no others are free.

Invariants: at most `most_blocks` blocks are kept; a block is kept exactly if some kept conversation has it.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from typing import Final, Protocol, final

from cluster.messages.kv_events import KEY_BYTES
from cluster.messages.retention import TENANT_GROUPS, RetentionCounts
from router.retention.return_times import EDGES_S, AnswerEnding, ReturnKind, ReturnTimes

MOST_KNOWN: Final = 4096
"""Conversations that are known, kept or not. More takes memory (some 300 bytes each); fewer forgets conversations
before they come back, so that their times are not learned.
"""
MOST_SHARED: Final = 1024
"""Marks that are known to be of several conversations. More takes memory (some 100 bytes each); fewer forgets some, and
takes another conversation for the next step of one again.
"""
MOST_COMPARED: Final = 64
"""Kept conversations, the oldest first, of which the least likely to come back gives way to others. More takes longer
(2 us each); fewer may let go of one that is likelier to come back than a younger one.
"""
MOST_DROPPED: Final = 16
"""Conversations that give way to one other. If these are not enough, the other one is not kept. More holds the engine's
core up for longer, after someone has had many small ones kept; fewer keeps no large ones then.
"""
LEAST_COMMON: Final = 0.5
"""Share of a conversation's blocks that a prompt must begin with to count as an edited state of it. Lower takes other
conversations with the same system prompt for edited ones; higher keeps dead blocks.
"""


class BlockOrder(Protocol):
    """The order in which an engine takes free blocks for other prompts. Each block is named by its hash."""

    def keep(self, blocks: Sequence[bytes]) -> None:
        """Take these after all that are not kept. The end of a prompt is taken before its begin."""
        ...

    def let_go(self, blocks: Sequence[bytes]) -> None:
        """Do not keep these any more. They are taken when they would have been taken without `keep`: next, if that was
        earlier than now.
        """
        ...

    def take_first(self, blocks: Sequence[bytes]) -> None:
        """Take these before all others, because nobody will ask for them. None of them is kept."""
        ...


@final
class WaitingConversation:
    """A conversation after an answer."""

    __slots__ = ("chain", "ended_at", "expires_at", "kind", "mark", "tenant", "was_kept")

    def __init__(self, chain: Sequence[bytes], mark: bytes, tenant: int, now: float) -> None:
        self.tenant = tenant
        self.kind = ReturnKind(AnswerEnding.STOP, tenant % TENANT_GROUPS)
        self.chain = chain
        """Hashes of the full blocks of its prompt and answer. Empty if they are not known any more."""
        self.mark = mark
        self.ended_at = now
        self.expires_at = 0.0
        """Until when its blocks are kept: a time in seconds, or inf once its next prompt is here. It counts only while
        the conversation is kept.
        """
        self.was_kept = False


@final
class KeptConversations:
    def __init__(self, most_blocks: int, known_blocks: int, order: BlockOrder, times: ReturnTimes) -> None:
        """`known_blocks`: blocks whose hashes are remembered of answers that have ended. More than the engine's memory
        has is of no use.
        """
        self.counts = RetentionCounts()
        self.next_due = inf
        """When `expire` has something to do at the earliest."""
        self._most_blocks = most_blocks
        self._known_blocks = known_blocks
        self._order = order
        self._times = times
        self._known: dict[bytes, WaitingConversation] = {}
        """By mark, the key of the last full block of the prompt. In order of endings."""
        self._chained: dict[WaitingConversation, None] = {}
        """Those with a chain, in the same order."""
        self._num_chained = 0
        """Blocks in their chains."""
        self._kept: dict[WaitingConversation, None] = {}
        self._shared: dict[bytes, None] = {}
        """Marks that name no conversation, because prompts of several end with this block: a system prompt, mostly."""
        self._wanted: dict[bytes, int] = {}
        """Number of kept conversations that have a block."""

    # ---- what happens

    def ended(self, chain: Sequence[bytes], num_prompt: int, tenant: int, now: float) -> None:
        """An answer has ended. `chain`: hashes of the full blocks of prompt and answer, of which `num_prompt` are of
        the prompt. `tenant`: a number that other tenants do not have.
        """
        if not 0 < num_prompt <= len(chain):
            return
        mark = chain[num_prompt - 1][-KEY_BYTES:]
        if mark in self._shared:
            return
        if (before := self._known.get(mark)) is not None:
            if before.tenant != tenant:
                self._share(before)
                return
            self._let_go(before)
            self._forget(before)
        conversation = WaitingConversation(chain, mark, tenant, now)
        self._known[mark] = conversation
        self._chained[conversation] = None
        self._num_chained += len(chain)
        self._bound_memory()
        self.next_due = min(self.next_due, now + EDGES_S[-1])
        self._keep(conversation, now)

    def awaits(self, mark: bytes, tools: int, now: float) -> None:
        """The answer to the prompt that ends with this block has called tools of this group."""
        conversation = self._known.get(mark)
        if conversation is None or conversation.kind.ending is AnswerEnding.TOOL:
            return
        conversation.kind = ReturnKind(AnswerEnding.TOOL, conversation.kind.tenant, tools)
        self._keep(conversation, now)

    def came(self, chain: Sequence[bytes], tenant: int, now: float) -> WaitingConversation | None:
        """A prompt has come. The conversation whose blocks are kept for it until `admitted`, if there is one."""
        conversation = self._before(chain, tenant)
        if conversation is None:
            return None
        if chain[-1][-KEY_BYTES:] == conversation.mark:  # the prompt does not go on after it
            self._share(conversation)
            return None
        self._times.returned(conversation.kind, now - conversation.ended_at)
        self._forget(conversation)
        common = _common(conversation.chain, chain)
        dead = conversation.chain[common:]
        if conversation in self._kept:
            self.counts.returned += 1
            self.counts.hit_blocks += common
            self._order.let_go(self._unwant(dead))
            conversation.chain = conversation.chain[:common]
            conversation.expires_at = inf
        else:
            self.counts.late += conversation.was_kept
        if dead:
            self._bury(dead)
        return conversation if conversation in self._kept else None

    def admitted(self, conversation: WaitingConversation) -> None:
        """The prompt of a conversation that came back has its blocks, or has ended."""
        self._let_go(conversation)

    def expire(self, now: float) -> None:
        for conversation in [each for each in self._kept if each.expires_at <= now]:
            self.counts.expired += 1
            self._let_go(conversation)
        while self._known:
            oldest = next(iter(self._known.values()))
            if oldest.ended_at + EDGES_S[-1] > now:
                break
            self._times.ended(oldest.kind)
            self._let_go(oldest)
            self._forget(oldest)
        ends = [each.expires_at for each in self._kept]
        if self._known:
            ends.append(next(iter(self._known.values())).ended_at + EDGES_S[-1])
        self.next_due = min(ends, default=inf)

    def validate(self) -> None:
        """Assert every invariant. Tests call it."""
        wanted: dict[bytes, int] = {}
        for conversation in self._kept:
            for block in conversation.chain:
                wanted[block] = wanted.get(block, 0) + 1
        assert wanted == self._wanted
        assert self.counts.kept_blocks == len(wanted) <= self._most_blocks
        assert self._num_chained == sum(len(each.chain) for each in self._chained)
        assert self._num_chained <= self._known_blocks
        assert len(self._known) <= MOST_KNOWN
        assert len(self._shared) <= MOST_SHARED
        assert not self._shared.keys() & self._known.keys()

    # ---- keeping

    def _keep(self, conversation: WaitingConversation, now: float) -> None:
        """Keep a conversation for as long as its kind is worth it, from its ending on."""
        expires_at = conversation.ended_at + self._times.keep_s(conversation.kind)
        if expires_at <= now:
            self._let_go(conversation)
            return
        if not 0 < len(conversation.chain) <= self._most_blocks:
            return
        conversation.expires_at, conversation.was_kept = expires_at, True
        self.next_due = min(self.next_due, expires_at)
        if conversation in self._kept:
            return
        self._kept[conversation] = None
        wanted = self._wanted
        new = [block for block in conversation.chain if block not in wanted]
        for block in conversation.chain:
            wanted[block] = wanted.get(block, 0) + 1
        self.counts.kept_blocks = len(wanted)
        self._order.keep(new)
        self._bound_kept(conversation, now)

    def _let_go(self, conversation: WaitingConversation) -> None:
        if conversation in self._kept:
            del self._kept[conversation]
            self._order.let_go(self._unwant(conversation.chain))

    def _unwant(self, chain: Sequence[bytes]) -> list[bytes]:
        """One conversation less has these blocks. Those that no kept one has any more."""
        wanted, gone = self._wanted, []
        for block in chain:
            left = wanted[block] - 1
            if left:
                wanted[block] = left
            else:
                del wanted[block]
                gone.append(block)
        self.counts.kept_blocks = len(wanted)
        return gone

    def _bury(self, dead: Sequence[bytes]) -> None:
        unwanted = [block for block in dead if block not in self._wanted]
        self.counts.dead_blocks += len(unwanted)
        self._order.take_first(unwanted)

    def _bound_kept(self, new: WaitingConversation, now: float) -> None:
        """Let go of the conversations that are least likely to come back now, or of the new one, down to the bound."""
        for number in range(MOST_DROPPED + 1):
            if len(self._wanted) <= self._most_blocks:
                return
            oldest = islice(self._kept, MOST_COMPARED)
            least = min(oldest, key=lambda each: self._worth(each, now)) if number < MOST_DROPPED else new
            self.counts.dropped += 1
            self._let_go(least)

    def _worth(self, conversation: WaitingConversation, now: float) -> tuple[float, float]:
        if conversation.expires_at == inf:  # its next prompt is here
            return inf, conversation.ended_at
        return self._times.chance_per_s(conversation.kind, now - conversation.ended_at), conversation.ended_at

    # ---- knowing

    def _before(self, chain: Sequence[bytes], tenant: int) -> WaitingConversation | None:
        """The conversation that a prompt goes on with."""
        known = self._known
        for block in reversed(chain):
            conversation = known.get(block[-KEY_BYTES:])
            if conversation is not None and conversation.tenant == tenant:
                return conversation
        return self._edited(chain, tenant)

    def _edited(self, chain: Sequence[bytes], tenant: int) -> WaitingConversation | None:
        """The kept conversation that a prompt begins with most of, and no other kept one does."""
        common = 0
        while common < len(chain) and chain[common] in self._wanted:
            common += 1
        if not common or self._wanted[chain[common - 1]] > 1:
            return None
        last = chain[common - 1]
        for conversation in self._kept:
            blocks = conversation.chain
            if common <= len(blocks) and blocks[common - 1] == last and conversation.expires_at < inf:
                is_state = conversation.tenant == tenant and common >= LEAST_COMMON * len(blocks)
                return conversation if is_state else None
        return None

    def _share(self, conversation: WaitingConversation) -> None:
        """Prompts of several conversations end with the same block, so that it names none of them."""
        if len(self._shared) >= MOST_SHARED:
            del self._shared[next(iter(self._shared))]
        self._shared[conversation.mark] = None
        self._let_go(conversation)
        self._forget(conversation)

    def _forget(self, conversation: WaitingConversation) -> None:
        """Do not take later prompts for its next step."""
        if self._known.get(conversation.mark) is conversation:
            del self._known[conversation.mark]
        self._unchain(conversation)

    def _unchain(self, conversation: WaitingConversation) -> None:
        if conversation in self._chained:
            del self._chained[conversation]
            self._num_chained -= len(conversation.chain)

    def _bound_memory(self) -> None:
        while len(self._known) > MOST_KNOWN:
            self._forget(self._least_needed(self._known.values()))
        while self._num_chained > self._known_blocks:
            oldest = self._least_needed(self._chained)
            self._unchain(oldest)
            oldest.chain = ()

    def _least_needed(self, conversations: Iterable[WaitingConversation]) -> WaitingConversation:
        """The oldest one that is not kept. If all are, the oldest one, which is kept no more."""
        for conversation in conversations:
            if conversation not in self._kept:
                return conversation
        oldest = next(iter(conversations))
        self.counts.dropped += 1
        self._let_go(oldest)
        return oldest


def _common(chain: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Blocks that both begin with."""
    number = min(len(chain), len(other))
    if number and chain[number - 1] == other[number - 1]:  # hashes are of all blocks before them, too
        return number
    return next((i for i in range(number) if chain[i] != other[i]), number)
