"""How long files, functions, classes and folders are."""

import ast
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, SOURCES, tree

MAX_MODULES = 15
"""In one folder: what a reader takes in at once."""

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_METHODS = 400, 60, 20


@pytest.mark.parametrize("folder", sorted({str(Path(file).parent) for file in SOURCES}))
def test_folder_is_small_enough_to_be_taken_in_at_once(folder: str) -> None:
    modules = [file for file in SOURCES if str(Path(file).parent) == folder and not file.endswith("__init__.py")]
    assert len(modules) <= MAX_MODULES


@pytest.mark.parametrize("file", SOURCES)
def test_file_is_short_enough_to_be_read_at_once(file: str) -> None:
    assert (ROOT / file).read_text().count("\n") <= MAX_FILE_LINES


@pytest.mark.parametrize("file", SOURCES)
def test_functions_are_short_enough_to_be_read_at_once(file: str) -> None:
    functions = [n for n in ast.walk(tree(file)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    too_long = [n.name for n in functions if (n.end_lineno or n.lineno) - n.lineno + 1 > MAX_FUNCTION_LINES]
    assert too_long == []


@pytest.mark.parametrize("file", SOURCES)
def test_class_has_few_methods(file: str) -> None:
    too_many = {}
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ClassDef):
            number = sum(isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) for child in node.body)
            if number > MAX_METHODS:
                too_many[node.name] = number
    assert too_many == {}
