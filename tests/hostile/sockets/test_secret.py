"""How the processes of an application come to know its secret."""

import pytest

from cluster.config.environment import SECRET_VARIABLE
from cluster.network.secret import cluster_secret, establish_secret


class Kept:
    """A store of one value, as all processes of an application see it."""

    def __init__(self) -> None:
        self.secret: str | None = None

    def keep_first(self, proposed: str) -> str:
        self.secret = self.secret or proposed
        return self.secret


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "")


def test_processes_of_one_application_share_the_secret_that_the_first_of_them_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, seen = Kept(), set()
    for _ in range(3):
        monkeypatch.setenv(SECRET_VARIABLE, "")
        establish_secret(kept.keep_first)
        seen.add(cluster_secret())
    assert len(seen) == 1


def test_applications_have_different_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for _ in range(2):
        monkeypatch.setenv(SECRET_VARIABLE, "")
        establish_secret(Kept().keep_first)
        seen.add(cluster_secret())
    assert len(seen) == 2


def test_secret_of_the_operator_is_used_and_not_kept_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "o" * 40)
    kept = Kept()
    establish_secret(kept.keep_first)
    assert cluster_secret() == b"o" * 40
    assert kept.secret is None


def test_secret_that_can_be_guessed_is_refused_without_being_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "swordfish")
    with pytest.raises(ValueError, match="9 characters") as raised:
        establish_secret(Kept().keep_first)
    assert "swordfish" not in str(raised.value)


def test_secret_has_thirty_two_characters_or_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "s" * 31)
    with pytest.raises(ValueError, match="31 characters; it must have 32"):
        cluster_secret()
    monkeypatch.setenv(SECRET_VARIABLE, "s" * 32)
    assert cluster_secret() == b"s" * 32


def test_process_without_the_secret_says_which_variable_is_missing() -> None:
    with pytest.raises(RuntimeError, match=SECRET_VARIABLE):
        cluster_secret()
