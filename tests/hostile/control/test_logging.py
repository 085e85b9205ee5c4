"""What libraries do to logging in a replica's process, and what must be left of Serve's handlers, of vLLM's and NIXL's
records, and of Baton's. Each test runs in a process of its own: logging belongs to the process.
"""

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from cluster.repository import REPO_ROOT

SERVE_LOGS = """
import logging, logging.handlers, sys
from ray.serve._private.logging_utils import configure_component_logger
from ray.serve.schema import LoggingConfig

configure_component_logger(
    component_name="deployment", component_id="replica", max_bytes=1 << 20, backup_count=1,
    logging_config=LoggingConfig(logs_dir=sys.argv[1]),
)
serve = logging.getLogger("ray.serve")
serves_handlers = list(serve.handlers)
(file,) = [h for h in serves_handlers if isinstance(h, logging.handlers.MemoryHandler)]

def writes_to_its_file(message):
    assert serve.handlers == serves_handlers
    assert file.target is not None, "closed: the replica cannot say where its log is"
    serve.error(message)
    assert not file.buffer, "kept for ever"
"""
"""What Serve does when a replica starts."""
LIBRARIES = {
    "vLLM": """
from vllm.config.logging import LoggingConfig as VllmLogging
from vllm.logger import configure_logging, init_logger
configure_logging(VllmLogging())
library = init_logger("vllm.tests")
""",
    "NIXL": """
import nixl._api
library = logging.getLogger("nixl.tests")
""",
    "another": """
import logging.config
library = logging.getLogger("another")
logging.config.dictConfig({
    "version": 1,
    "handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}},
    "loggers": {"another": {"handlers": ["out"], "level": "WARNING"}},
})
""",
}
BATON = """
from cluster.observability.logging import set_up_logging
class Id(logging.Filter):
    def filter(self, record):
        record.request_id = "req_1"
        return True
baton = logging.getLogger("baton.tests")
"""


def test_libraries_that_configure_logging_leave_serve_s_handlers_and_log_once(tmp_path: Path) -> None:
    configured = "".join(
        f"{library}\nlibrary.warning('{name} speaks')\nwrites_to_its_file('serve, after {name}')\n"
        for name, library in LIBRARIES.items()
    )
    said = _run(f"{SERVE_LOGS}{BATON}\nset_up_logging()\n{configured}\nprint(file.target.baseFilename)", str(tmp_path))
    log = Path(said.stdout.splitlines()[-1]).read_text()
    for name in LIBRARIES:
        assert log.count(f"serve, after {name}") == 1
        assert (said.stdout + said.stderr).count(f"{name} speaks") == 1


def test_baton_logs_once_with_its_level_name_and_request(tmp_path: Path) -> None:
    configured = f"set_up_logging()\nset_up_logging([Id()])\n{LIBRARIES['NIXL']}{LIBRARIES['another']}"
    program = f"{SERVE_LOGS}{BATON}\n{configured}\nbaton.warning('baton %s', 'speaks')"
    said = _run(program, str(tmp_path))
    (line,) = [line for line in (said.stdout + said.stderr).splitlines() if "baton speaks" in line]
    assert line.startswith("WARNING ") and line.endswith("baton.tests [req_1] baton speaks")


def test_record_without_a_request_has_none(tmp_path: Path) -> None:
    said = _run(f"import logging{BATON}\nset_up_logging()\nbaton.warning('baton speaks')", str(tmp_path))
    assert said.stderr.rstrip().endswith("baton.tests [-] baton speaks")


def test_client_s_text_forges_no_line_and_steers_no_terminal(tmp_path: Path) -> None:
    """Neither in a message nor as the text of an exception, of which logging writes each line."""
    program = f"""
import logging{BATON}
set_up_logging()
text = "name\\r\\nERROR forged\\x1b[2J\\x85ERROR forged\\u2028ERROR forged"
baton.warning("of %s", text)
try:
    raise ValueError(text)
except ValueError:
    baton.exception("it failed")
"""
    said = _run(program, str(tmp_path)).stderr
    records = [line for line in said.splitlines() if not line.startswith("    ")]
    assert [line.split()[0] for line in records] == ["WARNING", "ERROR"]
    assert "ValueError: name" in said and "Traceback" in said
    assert said.isprintable() or {character for character in said if not character.isprintable()} == {"\n"}


@pytest.mark.parametrize(
    ("level", "said_by_baton"),
    [("ERROR", ["warning", "error"]), ("INFO", ["info", "warning", "error"]), ("nonsense", ["warning", "error"])],
)
def test_level_lets_baton_say_more_and_never_less_than_warnings(
    tmp_path: Path, level: str, said_by_baton: list[str]
) -> None:
    says = "\n".join(f"baton.{name}('it says %s', '{name}')" for name in ("debug", "info", "warning", "error"))
    said = _run(f"import logging{BATON}\nset_up_logging()\n{says}", str(tmp_path), VLLM_LOGGING_LEVEL=level)
    assert [line.rpartition(" ")[2] for line in said.stderr.splitlines() if "it says" in line] == said_by_baton


def test_dictionary_that_is_wrong_changes_nothing(tmp_path: Path) -> None:
    program = f"""
{SERVE_LOGS}{BATON}
set_up_logging()
import logging.config
try:
    logging.config.dictConfig({{"version": 1, "handlers": {{"out": {{"class": "no.such.Handler"}}}}}})
except ValueError:
    print("refused")
writes_to_its_file("serve still writes")
"""
    assert _run(program, str(tmp_path)).stdout.splitlines()[-1] == "refused"


def _run(program: str, folder: str, **environment: str) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [sys.executable, "-c", program, folder],
        cwd=REPO_ROOT,
        env={"PATH": "/usr/bin:/bin", "VLLM_LOGGING_LEVEL": "WARNING", "NIXL_LOG_LEVEL": "WARN", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def test_json_lines_are_one_object_each_whatever_the_text(tmp_path: Path) -> None:
    program = f"""
import logging{BATON}
set_up_logging([Id()], replica="ingress-1")
text = "name\\r\\nforged\\x1b[2J\\x85\\u2028\\ud800"
baton.warning("of %s", text)
try:
    raise ValueError(text)
except ValueError:
    baton.exception("it failed")
"""
    said = _run(program, str(tmp_path), BATON_LOG_FORMAT="json").stderr
    assert said.isascii() and said.replace("\n", "").isprintable()
    first, second = (json.loads(line) for line in said.splitlines())
    assert first.keys() == {"time", "level", "logger", "message", "request_id", "replica"}
    assert first["message"] == "of name\r\nforged\x1b[2J\x85\u2028\ud800"
    assert (first["level"], first["logger"], first["request_id"]) == ("WARNING", "baton.tests", "req_1")
    assert first["replica"] == "ingress-1"
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert "Traceback" in second["exception"] and second["level"] == "ERROR"
