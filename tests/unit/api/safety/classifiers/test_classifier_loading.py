"""Which classifier a spec names, and what is refused of a stranger's before it serves a request."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from api.safety.classifiers.classifier_loading import LINEAR, load_classifier
from api.safety.verdict import Category
from tests.architecture.sources import ROOT

HERE = __name__


class OneWordClassifier:
    """A stranger's classifier."""

    def __init__(self, scores: Sequence[float] = (0.5,), version: str = "mine") -> None:
        self.version = version
        self.categories: Sequence[Category] = (Category.HATE,)
        self._scores = scores

    def start(self) -> "OneWordClassifier":
        return self

    def add(self, word: str) -> Sequence[float]:
        return self._scores


def mine(folder: Path) -> OneWordClassifier:
    return OneWordClassifier(version=folder.name)


def raises(folder: Path) -> OneWordClassifier:
    raise RuntimeError("no licence")


def of_no_class(folder: Path) -> object:
    return object()


def without_version(folder: Path) -> OneWordClassifier:
    return OneWordClassifier(version="")


def with_two_scores(folder: Path) -> OneWordClassifier:
    return OneWordClassifier((0.1, 0.2))


def with_high_scores(folder: Path) -> OneWordClassifier:
    return OneWordClassifier((1.5,))


def with_no_number(folder: Path) -> OneWordClassifier:
    return OneWordClassifier((float("nan"),))


def test_linear_is_the_one_of_the_folder() -> None:
    classifier = load_classifier(LINEAR, ROOT / "conf" / "safety" / "classifier")
    assert classifier.version
    assert Category.HATE in classifier.categories


def test_linear_without_its_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a classifier"):
        load_classifier(LINEAR, tmp_path)


def test_factory_of_a_deployment_gets_the_folder(tmp_path: Path) -> None:
    assert load_classifier(f"{HERE}:mine", tmp_path).version == tmp_path.name


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "lineal",
        ":",
        "module:",
        ":factory",
        "no.such.module:factory",
        f"{HERE}:no_such_factory",
        f"{HERE}:HERE",
        "..relative:factory",
        *(f"{HERE}:{name}" for name in ("raises", "of_no_class", "without_version")),
        *(f"{HERE}:{name}" for name in ("with_two_scores", "with_high_scores", "with_no_number")),
    ],
)
def test_what_is_no_classifier_is_refused_with_the_reason(spec: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"classifier|TextClassifier|version|scores"):
        load_classifier(spec, tmp_path)
