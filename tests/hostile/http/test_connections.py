"""The limits on open connections, and which connection is closed at the limit."""

from tests.hostile.http.wire import GET, listening, post


async def test_one_address_may_have_so_many() -> None:
    async with listening(max_connections_per_address=3) as wire:
        held = [await wire.connection() for _ in range(3)]
        for connection in held:
            assert (await connection.asked(GET)).status == 200
        one_more = await wire.connection()
        answer = await one_more.answer()
        assert (answer.status, answer.code) == (503, "engine_overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        held[0].writer.close()
        await held[0].writer.wait_closed()
        assert (await held[1].asked(GET)).status == 200
        assert (await wire.asked(GET)).status == 200


async def test_idle_connections_make_room_for_new_ones() -> None:
    async with listening(max_connections=8) as wire:
        oldest, *others = [await wire.connection() for _ in range(8)]
        for connection in others:
            assert (await connection.asked(GET)).status == 200
        assert (await wire.asked(GET)).status == 200
        assert await oldest.is_closed()
        assert (await others[-1].asked(GET)).status == 200


async def test_requests_that_are_being_answered_are_not_driven_out() -> None:
    async with listening(max_connections=8) as wire:
        wire.app.may_answer.clear()
        busy = [await wire.connection() for _ in range(8)]
        for connection in busy:
            await connection.send(post(b"{}"))
        refused = await (await wire.connection()).answer()
        assert (refused.status, refused.code) == (503, "engine_overloaded")
        wire.app.may_answer.set()
        assert [(await connection.answer()).status for connection in busy] == [200] * 8


async def test_no_more_than_sixty_four_refused_connections_are_still_read_from() -> None:
    """Each refused connection that is still read from holds a file descriptor."""
    async with listening() as wire:
        for _ in range(70):
            refused = await wire.connection()
            await refused.send(b"\x16\x03\x01")
            assert (await refused.answer()).status == 400
            assert len(wire.gatekeeper.ending) <= 64
        assert (len(wire.gatekeeper.ending), wire.num_open) == (64, 0)
        assert (await wire.asked(GET)).status == 200
