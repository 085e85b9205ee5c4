"""The contract of layers in pyproject.toml names every package, and the table of ARCHITECTURE.md has its order. CI's
import-linter checks the contract itself.
"""

import re
import tomllib

import pytest

from tests.architecture.sources import PACKAGES, ROOT, is_module

CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
LAYERS = [re.split(r"\s*[:|]\s*", layer) for layer in CONTRACT["layers"]]
"""From the highest to the lowest. Each is the modules of one layer."""
CELL = re.compile(r"`([\w/]+?)(?:/|\.py)`")


def children(package: str) -> set[str]:
    """The modules and the packages directly in a package."""
    found = {path.stem for path in (ROOT / package).iterdir() if path.stem != "__init__"}
    return {f"{package}.{name}" for name in found if is_module(f"{package}.{name}")}


def table() -> list[list[str]]:
    """The modules of each row of the table of packages."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text[text.index("\n## Packages\n") : text.index("\n## Rules\n")]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [[path.replace("/", ".") for path in CELL.findall(row)] for row in rows]


@pytest.mark.parametrize("package", PACKAGES)
def test_contract_of_layers_names_each_package_and_no_other(package: str) -> None:
    named = [module for layer in LAYERS for module in layer if module.partition(".")[0] == package]
    assert sorted(named) in ([package], sorted(children(package)))


def test_table_of_packages_has_the_order_of_the_contract() -> None:
    level = {module: number for number, layer in enumerate(LAYERS) for module in layer}
    rows = table()
    assert sorted(module for row in rows for module in row) == sorted(level)
    levels = [level[module] for row in rows for module in row]
    assert levels == sorted(levels)
