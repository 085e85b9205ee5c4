"""Trains the linear safety classifier on the examples, and reports how good it is on examples that were held out.

Writes conf/safety/classifier/weights.npz and docs/safety-classifier.md. `--check` writes nothing: it trains again, and
fails if the committed weights or the committed report are not what comes out.
"""

import argparse
import os
import sys
from pathlib import Path

# One thread: more would only wait for each other, and add up in another order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from api.safety.classifiers.linear_classifier import LinearClassifier, LinearWeights
from bench.matrix.cells import REPO_ROOT
from bench.safety.examples import Example, categories_of, read_examples
from bench.safety.measurement import measure
from bench.safety.report import report
from bench.safety.split import HELD_OUT, nearest_learned, parts_of
from bench.safety.training import train
from bench.safety.word_vectors import read_vectors

FOLDER = REPO_ROOT / "conf" / "safety" / "classifier"
REPORT = REPO_ROOT / "docs" / "safety-classifier.md"
MOST_DIFFERENT = 0.01
"""The difference of two scores of one text that rounding may make, on another processor for example."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is committed, and write nothing")
    is_check = parser.parse_args().check
    try:
        examples = read_examples()
    except ValueError as error:
        sys.exit(f"bench: {error}")
    parts = parts_of(examples)
    weights = train(examples, parts, categories_of(examples), read_vectors())
    if is_check:
        problems = _problems(weights, examples, parts)
        sys.exit("\n".join(f"bench: {problem}" for problem in problems) or 0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    weights.save(FOLDER)
    classifier = LinearClassifier(weights)
    REPORT.write_text(_report(classifier, examples, parts))
    print(f"{REPORT.relative_to(REPO_ROOT)} and weights {classifier.version} are written")


def _report(classifier: LinearClassifier, examples: list[Example], parts: NDArray[np.int64]) -> str:
    held_out = _held_out(examples, parts)
    measured = measure(classifier, held_out, nearest_learned(examples, parts))
    return report(measured, examples, held_out, classifier.version)


def _held_out(examples: list[Example], parts: NDArray[np.int64]) -> list[Example]:
    return [example for example, part in zip(examples, parts, strict=True) if part == HELD_OUT]


def _problems(trained: LinearWeights, examples: list[Example], parts: NDArray[np.int64]) -> list[str]:
    try:
        committed = LinearClassifier.load(FOLDER)
    except ValueError as error:
        return [str(error)]
    problems = []
    again = LinearClassifier(trained)
    if list(again.categories) != list(committed.categories):
        problems.append("the committed weights have other categories")
    elif (found := _difference(again, committed, _held_out(examples, parts))) > MOST_DIFFERENT:
        problems.append(f"the committed weights give other scores, up to {found:.3f}")
    if _text(REPORT) != _report(committed, examples, parts):
        problems.append(f"{REPORT.relative_to(REPO_ROOT)} is not what the committed weights come to")
    return problems


def _difference(one: LinearClassifier, other: LinearClassifier, texts: list[Example]) -> float:
    """The largest difference of scores of one text."""
    windows = [(text, one.start(), other.start()) for text in texts]
    return max(
        float(np.abs(np.subtract(first.add(word), second.add(word))).max())
        for text, first, second in windows
        for word in text.words
    )


def _text(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


if __name__ == "__main__":
    main()
