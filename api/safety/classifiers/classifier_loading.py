"""Which classifier an ingress has: the linear one, or one that the deployment plugs in."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

from api.safety.classifiers.classifier import TextClassifier
from api.safety.classifiers.linear_classifier import LinearClassifier
from api.safety.verdict import Category

LINEAR = "linear"


def load_classifier(spec: str, folder: Path) -> TextClassifier:
    """`spec`: `linear`, or `package.module:factory`, of which factory(folder) is a TextClassifier. Raises ValueError:
    there is no such thing, or it does not load.
    """
    if spec == LINEAR:
        return LinearClassifier.load(folder)
    module, _, name = spec.partition(":")
    if not module or not name:
        raise ValueError(f"a classifier is {LINEAR!r} or 'package.module:factory', not {spec!r}")
    try:
        factory = cast(Callable[[Path], TextClassifier], getattr(import_module(module), name))
        classifier = factory(folder)
    except Exception as error:  # whatever another's code raises
        raise ValueError(f"the classifier {spec} does not load: {type(error).__name__}: {error}") from error
    _check(spec, classifier)
    return classifier


def _check(spec: str, classifier: TextClassifier) -> None:
    """That a stranger's classifier has what is asked of it, before the first request finds out."""
    try:
        categories = [Category(category) for category in classifier.categories]
        scores = list(classifier.start().add("word"))
    except Exception as error:
        raise ValueError(f"{spec} is no TextClassifier: {type(error).__name__}: {error}") from error
    if not isinstance(classifier.version, str) or not classifier.version:
        raise ValueError(f"{spec} has no version")
    if len(set(categories)) != len(categories) or len(scores) != len(categories):
        raise ValueError(f"{spec} gives {len(scores)} scores for the categories {categories}")
    if not all(0 <= score <= 1 for score in scores):
        raise ValueError(f"{spec} gives scores that are not all from 0 to 1: {scores}")
