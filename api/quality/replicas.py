"""ProbeReplicas: one ingress replica probes at a time, and all of them show what it has found and pass commands to it.

The replica that probes holds a lease in Redis. If it dies, another one takes the lease when it runs out. While Redis is
away, the holder goes on for AWAY_S, and the only replica of a service for ever. No other replica begins to probe then.
Leases are numbered, so that Schedulers heed the later of two replicas that probe (router/trust/quarantined_workers.py).
"""

import asyncio

import msgspec

from api.quality.board import ProbeCommand, QualityView
from api.state.redis.client import RedisClient, RedisScript
from cluster.unreadable import UNREADABLE

LEASE_S = 15.0
"""Time for which a replica that probes may be silent, in seconds. Then another one probes. Longer leaves workers
without probes after the death of a replica; shorter has two replicas probe when one stands still.
"""
AWAY_S = 300.0
"""Time for which the holder of the lease goes on while Redis is away, in seconds. Longer has two replicas probe for
longer if one alone cannot reach Redis; shorter stops all probes in an outage of Redis.
"""
KEPT_MS = 60_000
"""Time for which Redis keeps what the probe shows, and commands that no replica takes, in milliseconds. Longer shows
results of a replica that is gone; shorter shows none while the lease moves.
"""
MAX_COMMANDS = 16
"""Commands that are taken at a time, and that wait at most. More lets operators repeat themselves; fewer loses some."""

_HOLD = RedisScript.of("""
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
local own = tonumber(ARGV[3])
if not held or own == 0 then
  local last = tonumber(redis.call('GET', KEYS[2])) or 0
  own = math.max(last, own) + 1
  redis.call('SET', KEYS[2], own)
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return own
""")
_RELEASE = RedisScript.of("if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 1")


class ProbeReplicas:
    def __init__(self, redis: RedisClient, service: str, replica: str, *, is_alone: bool) -> None:
        """`service`: tells this application apart from others that use the same Redis. `is_alone`: the service has no
        other replica.
        """
        self._redis = redis
        self._prefix = f"baton:quality:{service}"
        self.replica = replica
        self._is_alone = is_alone
        self._holds = False
        self._held_at = float("-inf")
        self.lease = 0
        """Number of the lease that this replica took last. Each taking has a higher number. 0 without Redis."""

    async def hold(self) -> bool:
        """Take or renew the lease. Whether this replica probes now."""
        now = asyncio.get_running_loop().time()
        keys = [f"{self._prefix}:lease", f"{self._prefix}:lease-number"]
        answer = await self._redis.run_script(_HOLD, keys, self.replica, round(LEASE_S * 1000), self.lease)
        if answer is not None:
            self._holds = answer > 0
            self.lease = answer or self.lease
            self._held_at = now if self._holds else float("-inf")
        elif not self._is_alone:
            self._holds = now - self._held_at < AWAY_S
        else:
            self._holds = True
        return self._holds

    async def release(self) -> None:
        """This replica ends: another one may probe at once."""
        if self._holds:
            self._holds = False
            await self._redis.run_script(_RELEASE, [f"{self._prefix}:lease"], self.replica)

    async def show(self, view: QualityView) -> None:
        """For the other replicas."""
        await self._redis.run(("SET", f"{self._prefix}:view", msgspec.json.encode(view), "PX", KEPT_MS))

    async def shown(self) -> QualityView | None:
        """What the replica that probes has found. None if no replica does, and while Redis is away."""
        answers = await self._redis.run(("GET", f"{self._prefix}:view"))
        if not answers or answers[0] is None:
            return None
        try:
            return msgspec.json.decode(answers[0], type=QualityView)
        except UNREADABLE:  # of another version, during an update
            return None

    async def pass_on(self, command: ProbeCommand) -> bool:
        """Leave a command for the replica that probes. False while Redis is away."""
        key = f"{self._prefix}:commands"
        text = msgspec.json.encode(command)
        commands = (("RPUSH", key, text), ("LTRIM", key, -MAX_COMMANDS, -1), ("PEXPIRE", key, KEPT_MS))
        return await self._redis.run(*commands) is not None

    async def take(self) -> list[ProbeCommand]:
        """The commands that other replicas have left."""
        answers = await self._redis.run(("LPOP", f"{self._prefix}:commands", MAX_COMMANDS))
        found: list[ProbeCommand] = []
        for text in (answers[0] if answers else None) or []:
            try:
                found.append(msgspec.json.decode(text, type=ProbeCommand))
            except UNREADABLE:  # of another version, during an update
                continue
        return found
