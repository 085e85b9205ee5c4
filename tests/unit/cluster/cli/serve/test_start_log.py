import pytest

from cluster.cli.serve.start_log import excerpt, has_failed_to_start


@pytest.mark.parametrize(
    ("log", "failed"),
    [
        ("Deploying new app 'baton'.\nAdding 1 replica", False),
        ("Deploying app 'baton' failed with exception:\nTraceback", True),
        ("Exception in Replica(id='a'), the replica will be stopped.", False),
        ("Exception in Replica(id='a'), the replica will be stopped.\n" * 2, True),
    ],
)
def test_start_that_cannot_succeed_is_noticed(log: str, failed: bool) -> None:
    assert has_failed_to_start(log) is failed


def test_excerpt_names_each_error_once_without_ray_prefix() -> None:
    prefix = "\x1b[36m(ServeController pid=7)\x1b[0m "
    log = f"{prefix}Traceback (most recent call last):\n{prefix}ValueError: no such dtype\n" * 2
    assert excerpt(log) == "ValueError: no such dtype"
    assert excerpt("one\ntwo") == "one\ntwo"
