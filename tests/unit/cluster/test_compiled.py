import sys
from pathlib import Path

import pytest

from cluster import compiled as subject
from cluster.compiled import INTERPRETED, LIBRARY, MODULES, SWITCH, file_of, folder, put_before, source_of


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that has been compiled."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(subject, "load_library", lambda file: None)
    for module in (*MODULES, *INTERPRETED):
        source = source_of(module, tmp_path)
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(f"# {module}")
    folder(tmp_path).mkdir(parents=True)
    return tmp_path


def searched(root: Path) -> list[str]:
    """Where the modules of `router` are looked for, in order."""
    path = [str(root / "router")]
    put_before("router", path, root)
    return path


def test_compiled_modules_are_found_before_their_sources(root: Path) -> None:
    compiled = folder(root)
    assert searched(root) == [str(compiled / "router"), str(root / "router")]


@pytest.mark.parametrize("content", [None, b"", b"cut off"])
def test_library_that_cannot_be_loaded_leaves_the_sources(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    monkeypatch.undo()
    monkeypatch.delenv(SWITCH, raising=False)
    if content is not None:
        file_of(LIBRARY, folder(root)).write_bytes(content)
    assert searched(root) == [str(root / "router")]
    assert LIBRARY not in sys.modules
    assert "the sources run" in caplog.text


def test_folder_that_cannot_be_read_leaves_the_sources(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def is_dir(self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert searched(root) == [str(root / "router")]
    assert "Permission denied" in caplog.text


@pytest.mark.parametrize("module", [*MODULES, *INTERPRETED])
def test_source_that_was_edited_is_not_run_as_it_was_compiled(root: Path, module: str) -> None:
    source_of(module, root).write_text("# edited")
    assert searched(root) == [str(root / "router")]


def test_source_that_is_as_it_was_again_is_run_as_it_was_compiled(root: Path) -> None:
    compiled, source = folder(root), source_of("router.state", root)
    before = source.read_text()
    source.write_text("# edited")
    source.write_text(before)
    assert searched(root)[0] == str(compiled / "router")


def test_text_that_moved_from_one_module_to_the_next_is_another_version(root: Path) -> None:
    compiled = folder(root)
    source_of(MODULES[0], root).write_text(f"# {MODULES[0]}#")
    source_of(MODULES[1], root).write_text(f" {MODULES[1]}")
    assert folder(root) != compiled


def test_another_interpreter_has_a_folder_of_its_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = folder(root)
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: "cpython-399")
    assert folder(root) != compiled


def test_environment_has_the_sources_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    assert searched(root) == [str(root / "router")]


def test_checkout_that_was_never_compiled_runs_its_sources(root: Path) -> None:
    folder(root).rmdir()
    assert searched(root) == [str(root / "router")]
