"""The compiled twins of the modules that placement runs through: where they are, and whether they belong to these
sources.

mypyc (`baton compile`, cluster/cli/compile.py) compiles MODULES to machine code, which is several times as fast and
otherwise the same. The code is in a folder that is named by a digest of the sources and of the interpreter's ABI. An
edited source or another interpreter has no such folder, and then the sources run. So a stale build is never imported,
and a compiler is not required. Objects of compiled classes cannot be pickled or copied.
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
    "api.safety.scans.disguise",
    "api.safety.scans.normalise",
    "api.safety.scans.patterns",
    "api.safety.scans.screened_text",
    "api.safety.scans.spellings",
    "api.safety.scans.trie",
    "api.safety.scans.words",
    "router.admission.verdict",
    "router.admission.admission_control",
    "router.admission.arrivals",
    "router.placement.placement_input",
    "router.prefixes.block_table",
    "router.links.link_classes",
    "router.links.link_graph",
    "router.links.link_plan",
    "router.load.charge",
    "router.load.charges",
    "router.trust.handoff_trust",
    "router.load.drains",
    "router.load.live_workers",
    "router.load.report_exchange",
    "router.load.request_audit",
    "router.load.running_requests",
    "router.load.roster",
    "router.scaling.load_reader",
    "router.scaling.offered_load",
    "router.trust.lost_workers",
    "router.trust.quarantined_workers",
    "router.trust.silent_workers",
    "router.trust.suspected_pairs",
    "router.trust.suspected_workers",
    "router.placement.commit",
    "router.placement.candidates",
    "router.placement.cost",
    "router.load.prefill_share",
    "router.load.prompt_demand",
    "router.load.prompt_queue",
    "router.admission.fairness",
    "router.admission.preemption",
    "router.load.what_if",
    "router.load.worker_state",
    "router.prediction.decaying",
    "router.prediction.learned_latency",
    "router.placement.kv_price",
    "router.placement.time_price",
    "router.placement.least_crowded",
    "router.placement.lmetric",
    "router.placement.no_candidates",
    "router.load.decode_slack",
    "router.prediction.output_lengths",
    "router.prediction.path_bias",
    "router.placement.goodput",
    "router.prefixes.entries",
    "router.prefixes.expected_blocks",
    "router.prefixes.generations",
    "router.prefixes.holder",
    "router.prefixes.index",
    "router.prefixes.narrowing",
    "router.prefixes.runs",
    "router.prefixes.snapshot_turns",
    "router.quarantine.quarantine",
    "router.admission.sorted_keys",
    "router.admission.waiting_queue",
    "router.admission.recent_failures",
    "router.admission.retry_after",
    "router.admission.wait_reason",
    "router.prediction.recursive_least_squares",
    "router.state",
    "router.status.status_reader",
    "router.prediction.long_steps",
    "router.prediction.step_chunk",
    "router.prediction.step_room",
    "router.prediction.step_model",
    "router.prediction.transfer",
    "router.prediction.worker_model",
    "router.placement.option",
    "router.placement.placer",
    "router.placement.recent_paths",
    "router.placement.work",
    "router.prefixes.worker_bits",
)
"""The modules that every placement runs through, and those that every character of a screened text does. They are
compiled.
"""
INTERPRETED = (
    "api.safety.scans.automata",
    "cluster.config.scheduler",
    "cluster.messages.generation",
    "cluster.messages.ids",
    "cluster.messages.kv_events",
    "cluster.messages.kv_format",
    "cluster.messages.operations",
    "cluster.messages.placement",
    "cluster.messages.reports",
    "cluster.messages.scaling",
    "cluster.messages.scheduler_events",
    "cluster.messages.transport",
    "cluster.messages.views",
    "cluster.slo",
    "router.trust.kv_formats",
    "kvtransfer.tolerance",
    "kvtransfer.verify",
    "router.prediction.hardware",
    "router.prediction.roofline",
)
"""The modules of Baton that MODULES import and that are not compiled. The digest covers them, because the machine code
depends on their contents.
"""
LIBRARY = "baton__mypyc"
"""mypyc's name for the library of a group of modules called `baton`."""
SWITCH = "BATON_PURE_PYTHON"
"""Environment variable. With the value 1, the sources run."""
ROOT = Path(__file__).resolve().parents[1]


def source_of(module: str, root: Path = ROOT) -> Path:
    return root / f"{module.replace('.', '/')}.py"


def builds(root: Path = ROOT) -> Path:
    return root / ".baton" / "compiled"


def folder(root: Path = ROOT) -> Path:
    """The folder of the machine code for these sources and this interpreter. It need not exist."""
    digest = blake2b(str(sysconfig.get_config_var("SOABI")).encode(), digest_size=10)
    for module in (*MODULES, *INTERPRETED):
        source = source_of(module, root).read_bytes()
        digest.update(b"%s %d " % (module.encode(), len(source)))
        digest.update(source)
    return builds(root) / digest.hexdigest()


def file_of(module: str, compiled: Path) -> Path:
    """The compiled file of a module."""
    return compiled / f"{module.replace('.', '/')}{sysconfig.get_config_var('EXT_SUFFIX')}"


def put_before(package: str, path: list[str], root: Path = ROOT) -> None:
    """Put the compiled modules of a package before its sources, if they exist. `path` is the package's `__path__`.
    Files that cannot be read or loaded here (incomplete, made for another machine, owned by another user) count as
    missing.
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
        logger.warning("the compiled modules cannot be used, the sources run: %s", error)


def load_library(file: Path) -> None:
    """Load the library that contains all compiled modules. The modules find it by its name.

    Raises:
        ImportError: The file does not exist, or cannot be loaded here.
    """
    if LIBRARY in sys.modules and sys.modules[LIBRARY].__file__ == str(file):
        return
    spec = spec_from_file_location(LIBRARY, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a library")
    library = module_from_spec(spec)
    spec.loader.exec_module(library)
    sys.modules[LIBRARY] = library


def is_in_use() -> bool:
    """Whether placement in this process runs as machine code."""
    decides = sys.modules.get("router.state")
    return decides is not None and not str(decides.__file__).endswith(".py")
