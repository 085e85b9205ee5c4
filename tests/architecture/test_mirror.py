"""The folders of tests/unit and tests/component mirror those of the source, and unit tests load no engine."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, file_of, imports, is_module

TESTS = sorted(
    file.relative_to(ROOT).as_posix()
    for kind in ("unit", "component")
    for file in (ROOT / "tests" / kind).rglob("test_*.py")
)


def mirrored(test: str) -> Path:
    """The folder of the source that a test's folder mirrors. Helpers of tests are a part of the source here."""
    return Path(*Path(test).parts[2:-1])


@pytest.mark.parametrize("test", TESTS)
def test_test_is_in_a_folder_that_the_source_has(test: str) -> None:
    folder = mirrored(test)
    assert folder.parts
    assert (ROOT / folder / "__init__.py").is_file() or (ROOT / "tests" / folder / "__init__.py").is_file()


@pytest.mark.parametrize("test", TESTS)
def test_test_that_is_named_after_a_module_it_imports_is_in_its_folder(test: str) -> None:
    """A test of another sub-package may have the name of a module by chance."""
    folder, name = mirrored(test), Path(test).stem.removeprefix("test_")
    modules = [Path(file_of(module)) for module in set(imports(test)) if is_module(module)]
    namesakes = {module.parent for module in modules if module.stem == name and module.parts[:2] == folder.parts[:2]}
    assert not namesakes or folder in namesakes


def test_unit_tests_load_no_engine() -> None:
    """So that they stay fast."""
    files = [file.relative_to(ROOT).as_posix() for file in (ROOT / "tests/unit").rglob("*.py")]
    ours = {name for file in files for name in imports(file) if name.partition(".")[0] in PACKAGES}
    program = (
        f"import sys, importlib\n"
        f"for module in {sorted(ours)!r}: importlib.import_module(module)\n"
        f"print(*sorted({{'ray', 'vllm', 'torch', 'nixl'}} & sys.modules.keys()))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
