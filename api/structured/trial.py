"""A process that compiles constraints as an engine does. A constraint that takes too long or too much memory ends only
this process: the kernel sends `SIGPROF` after the CPU time `compile_s`, and refuses memory above `compile_memory_mib`.

The process reads lines of JSON: first the data of the tokenizer, then one constraint on each line. It answers the first
line when it is ready, and each constraint with the error or null. The process imports neither vLLM nor the ingress, so
that it starts in 0.3 s and takes 30 MiB beside its tokenizer. api/structured/compilers.py starts it.
"""

import json
import resource
import signal
import sys
from typing import Any

import llguidance

from cluster.engine_core import guidance
from cluster.engine_core.tag_schemas import bounded_tag

TAG = "structural_tag"


class Trial:
    def __init__(self, setup: dict[str, Any]) -> None:
        self._compile_s = float(setup["compile_s"])
        self._memory_bytes = int(setup["memory_bytes"])
        self._tokenizer = llguidance.LLTokenizer(setup["tokenizer"], n_vocab=setup["n_vocab"], eos_token=setup["eos"])
        self._tag_tokens: str = setup["tag_tokens"]
        self._tags: Any = None

    def answer(self, kind: str, spec: str) -> str | None:
        """The error of a constraint. None for a constraint that compiles."""
        if kind == TAG and self._tags is None:
            self._tags = _tag_compiler(self._tag_tokens)
        self._limit()
        try:
            if kind == TAG:
                self._tags.compile_structural_tag(bounded_tag(spec))
            else:
                guidance.matcher(self._tokenizer, guidance.serialized(kind, spec))
        except Exception as error:  # the libraries document no classes of errors
            return str(error)[:300] or type(error).__name__
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            _limit_memory(resource.RLIM_INFINITY)
        return None

    def _limit(self) -> None:
        _limit_memory(_address_space() + self._memory_bytes)
        signal.setitimer(signal.ITIMER_PROF, self._compile_s)


def _limit_memory(num_bytes: int) -> None:
    """Limits the address space of this process, or sets it to the operator's own limit if that is lower."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    is_less = most != resource.RLIM_INFINITY and not 0 <= num_bytes <= most
    resource.setrlimit(resource.RLIMIT_AS, (most if is_less else num_bytes, most))


def _tag_compiler(tokens: str) -> Any:
    import xgrammar  # takes 1 s and 250 MiB, and is needed only for structural tags

    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.deserialize_json(tokens), max_threads=1, cache_enabled=False)


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the ingress ends this process by closing its input
    trial = Trial(json.loads(sys.stdin.buffer.readline()))
    _say(None)  # it is ready
    for line in sys.stdin.buffer:
        _say(trial.answer(*json.loads(line)))


def _say(answer: str | None) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
