"""A key management service: what it wraps is different each time, and its key never leaves it."""

from cryptography.fernet import Fernet, InvalidToken

from cluster.errors import ServingError


class Kms:
    name = "kms:alias/baton"

    def __init__(self, key: bytes) -> None:
        self._key = Fernet(key)
        self.num_unwrapped = 0

    def wrap(self, key: bytes) -> bytes:
        return self._key.encrypt(key)

    def unwrap(self, wrapped: bytes) -> bytes:
        self.num_unwrapped += 1
        try:
            return self._key.decrypt(wrapped)
        except InvalidToken as error:
            raise ServingError("the service has another key") from error


ONE = Kms(Fernet.generate_key())


def one() -> Kms:
    return ONE


def another() -> Kms:
    return Kms(Fernet.generate_key())


def broken() -> Kms:
    raise OSError("no credentials")


def no_master_key() -> str:
    return "a key"
