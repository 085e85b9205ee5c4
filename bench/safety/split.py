"""Which examples are held out, and which parts the rest has for cross-validation.

Lines of a file that follow each other stay together, as neighbours may be a question and its answer. Texts that share
many rare words stay together, too, in whichever files they are.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

from bench.safety.examples import Example

NUM_PARTS = 5
"""One of them is held out. More hold out fewer texts, so figures are less sure; fewer leave less to learn from."""
HELD_OUT = NUM_PARTS - 1
RUNS_PER_PART = 2
"""Runs of lines that a part has of each file. More mix what a file begins and ends with; fewer cut less often between
neighbours.
"""
MOST_SIMILAR = 0.4
"""Likeness of two texts above which they are near duplicates: the cosine of their words, where rare words count more.
Higher lets the held-out texts repeat what was learned; lower chains texts that have nothing but common words.
"""


def parts_of(examples: Sequence[Example]) -> NDArray[np.int64]:
    """The part of each example."""
    parts = np.zeros(len(examples), dtype=np.int64)
    for kind in dict.fromkeys((example.file, example.is_positive) for example in examples):
        places = [at for at, example in enumerate(examples) if (example.file, example.is_positive) == kind]
        for number, place in enumerate(places):
            parts[place] = number * NUM_PARTS * RUNS_PER_PART // len(places) % NUM_PARTS
    return parts[_firsts(near_duplicates(examples))]


def near_duplicates(examples: Sequence[Example]) -> NDArray[np.int64]:
    """The number of each example's group. All that are alike, directly or over others, are in one."""
    vectors = _vectors(examples)
    likeness = (vectors @ vectors.T).tocoo()
    is_alike = likeness.data > MOST_SIMILAR
    links = coo_matrix((likeness.data[is_alike], (likeness.row[is_alike], likeness.col[is_alike])), likeness.shape)
    groups: NDArray[np.int64] = connected_components(links, directed=False)[1]
    return groups


def nearest_learned(examples: Sequence[Example], parts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each text that is held out, its likeness to the text most like it that is not."""
    vectors, is_held_out = _vectors(examples), parts == HELD_OUT
    likeness: NDArray[np.float64] = (vectors[is_held_out] @ vectors[~is_held_out].T).max(axis=1).toarray().ravel()
    return likeness


def _firsts(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first member of each one's group."""
    first: dict[int, int] = {}
    return np.array([first.setdefault(int(group), at) for at, group in enumerate(groups)])


def _vectors(examples: Sequence[Example]) -> csr_matrix:
    """A row of length 1 per example, with the words that it has (TF-IDF)."""
    numbers: dict[str, int] = {}
    words = [[numbers.setdefault(word, len(numbers)) for word in dict.fromkeys(one.words)] for one in examples]
    columns = np.array([word for row in words for word in row])
    rows = np.repeat(np.arange(len(words)), [len(row) for row in words])
    values = (np.log((1 + len(words)) / (1 + np.bincount(columns))) + 1)[columns]
    values /= np.sqrt(np.bincount(rows, values**2))[rows]
    return csr_matrix((values, (rows, columns)), (len(words), len(numbers)))
