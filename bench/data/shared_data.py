"""Data that others have published: recorded traffic, measurements of engines, OpenAI's OpenAPI document. It is in a
folder beside the checkout, which tests and benchmarks read.
"""

from pathlib import Path

SHARED = Path(__file__).resolve().parents[3] / "shared"


def shared_file(name: str) -> Path:
    """A file of the folder.

    Raises:
        FileNotFoundError: It is missing. The message says where it belongs and where it comes from.
    """
    file = SHARED / name
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is missing: tests and benchmarks read it from the folder `shared` beside the checkout"
            " (CONTRIBUTING.md says where its files come from)"
        )
    return file
