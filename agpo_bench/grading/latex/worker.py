"""The worker process: reads one JSON request a line, answers one JSON line, and knows nothing of the parent.

Started as ``python -c`` by ``grading.workers``; imports sympy on its first request. Limits on memory and CPU are set
here, before any work, and the kernel enforces them.
"""

from __future__ import annotations

import json
import os
import resource
import sys

_MEMORY_BYTES = 512 << 20
_CPU_SECONDS = 5


def _limit_cpu(seconds: int) -> None:
    """CPU seconds from now on, rounded up; beyond them the kernel kills the process with SIGXCPU."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + seconds
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def serve(memory_bytes: int = _MEMORY_BYTES, cpu_seconds: int = _CPU_SECONDS) -> None:
    """Answer requests until the parent closes the pipe."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever a library prints does not end up among the replies
    from agpo_bench.grading.latex import symbolic

    for line in sys.stdin:
        request = json.loads(line)
        _limit_cpu(cpu_seconds)
        reply: dict[str, object]
        try:
            match request["task"]:
                case "equal":
                    reply = {"value": symbolic.is_proved_equal(request["first"], request["second"])}
                case "proportional":
                    reply = {"value": symbolic.is_proved_proportional(request["first"], request["second"])}
                case "math_verify":
                    from agpo_bench.grading.latex.peer import is_math_verify_equal

                    reply = {"value": is_math_verify_equal(request["gold"], request["answer"])}
                case "ping":
                    reply = {"value": True}
                case other:
                    reply = {"reason": f"no task {other!r}"}
        except MemoryError:
            reply = {"reason": "memory"}
        except RecursionError:
            reply = {"reason": "too_deep"}
        except Exception as error:  # sympy meets inputs it has no rule for; that proves nothing, and it is counted
            reply = {"reason": "undecided", "detail": type(error).__name__}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
