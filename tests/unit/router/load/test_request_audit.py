from router.load.request_audit import NUM_SHORT, RequestAudit


def test_question_is_open_after_several_short_counts_until_it_is_answered() -> None:
    audit = RequestAudit()
    for second in range(NUM_SHORT - 1):
        audit.count_is_short(float(second))
    assert audit.asked_at is None
    audit.count_is_short(7.0)
    audit.count_is_short(8.0)
    assert audit.asked_at == 7.0
    audit.answered()
    assert audit.asked_at is None
    audit.count_is_short(9.0)
    assert audit.asked_at is None


def test_right_count_between_short_ones_begins_anew() -> None:
    audit = RequestAudit()
    for _ in range(3):
        for _ in range(NUM_SHORT - 1):
            audit.count_is_short(1.0)
        audit.count_is_right()
    assert audit.asked_at is None
