"""Where the compiled twins of the modules that decide are, if they are there and belong to these very sources.

mypyc (`baton compile`, cluster/cli/compile.py) makes machine code of MODULES, several times as fast and otherwise the
same. It lies in a folder of its own, named by a digest of the sources and of the interpreter's ABI: a source that was
edited, or another interpreter, has no such folder, and the sources run. So nothing that is stale can ever be imported,
and nothing needs a compiler. Objects of compiled classes cannot be pickled or copied.
"""

import logging
import os
import sys
import sysconfig
from hashlib import blake2b
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

logger = logging.getLogger("baton.scheduler")

MODULES = (
    "router.admission.admission",
    "router.admission.admission_control",
    "router.admission.arrivals",
    "router.placement.placement_input",
    "router.prefixes.block_table",
    "router.load.charge",
    "router.load.charges",
    "router.load.live_workers",
    "router.load.request_audit",
    "router.load.running_requests",
    "router.load.suspected_pairs",
    "router.placement.commit",
    "router.placement.candidates",
    "router.placement.cost",
    "router.load.prefill_share",
    "router.admission.fairness",
    "router.load.worker_state",
    "router.prediction.latency",
    "router.placement.lmetric",
    "router.placement.no_candidates",
    "router.load.decode_slack",
    "router.prediction.output_lengths",
    "router.prediction.path_bias",
    "router.placement.goodput",
    "router.prefixes.expected_blocks",
    "router.prefixes.index",
    "router.quarantine.quarantine",
    "router.admission.waiting_queue",
    "router.admission.retry_after",
    "router.prediction.recursive_least_squares",
    "router.state",
    "router.prediction.step_model",
    "router.prediction.transfer",
    "router.placement.option",
    "router.placement.placer",
    "router.placement.work",
    "router.prefixes.worker_bits",
)
"""What every placement runs through."""
INTERPRETED = (
    "cluster.messages.generation",
    "cluster.messages.ids",
    "cluster.messages.kv_events",
    "cluster.messages.placement",
    "cluster.messages.reports",
    "cluster.messages.scheduler_events",
    "cluster.messages.transport",
    "cluster.messages.views",
    "cluster.slo",
    "router.prediction.hardware",
    "router.prediction.roofline",
)
"""What these import of ours and is not compiled: machine code is made for what it says, too."""
LIBRARY = "baton__mypyc"
"""mypyc's name for what it makes of a group of modules called `baton`."""
SWITCH = "BATON_PURE_PYTHON"
"""Environment variable that has the sources run when it is 1."""
ROOT = Path(__file__).resolve().parents[1]


def source_of(module: str, root: Path = ROOT) -> Path:
    return root / f"{module.replace('.', '/')}.py"


def builds(root: Path = ROOT) -> Path:
    return root / ".baton" / "compiled"


def folder(root: Path = ROOT) -> Path:
    """Where what these sources are compiled to for this interpreter is, or would be."""
    digest = blake2b(str(sysconfig.get_config_var("SOABI")).encode(), digest_size=10)
    for module in (*MODULES, *INTERPRETED):
        source = source_of(module, root).read_bytes()
        digest.update(b"%s %d " % (module.encode(), len(source)))
        digest.update(source)
    return builds(root) / digest.hexdigest()


def file_of(module: str, compiled: Path) -> Path:
    """What the module is compiled to."""
    return compiled / f"{module.replace('.', '/')}{sysconfig.get_config_var('EXT_SUFFIX')}"


def put_before(package: str, path: list[str], root: Path = ROOT) -> None:
    """Have a package's modules imported as compiled, where they are. `path`: its `__path__`. What cannot be read or
    loaded here (cut off, made for another machine, somebody else's) is as good as not there.
    """
    if os.environ.get(SWITCH) == "1":
        return
    try:
        if not builds(root).is_dir():
            return
        compiled = folder(root)
        if compiled.is_dir():
            load_library(file_of(LIBRARY, compiled))
            path.insert(0, str(compiled / package.replace(".", "/")))
    except (ImportError, OSError) as error:
        logger.warning("what was compiled cannot be used, the sources run: %s", error)


def load_library(file: Path) -> None:
    """What all compiled modules are in; they find it by its name.

    Raises:
        ImportError: it is not there, or cannot be loaded here.
    """
    if LIBRARY in sys.modules and sys.modules[LIBRARY].__file__ == str(file):
        return
    spec = spec_from_file_location(LIBRARY, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no library")
    library = module_from_spec(spec)
    spec.loader.exec_module(library)
    sys.modules[LIBRARY] = library


def is_in_use() -> bool:
    """Whether this process decides with machine code."""
    decides = sys.modules.get("router.state")
    return decides is not None and not str(decides.__file__).endswith(".py")
