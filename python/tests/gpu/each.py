"""How a case is run for many values, and what became of it: for the cases of all frameworks, without pytest."""

from __future__ import annotations

import faulthandler
import itertools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

Case = Callable[..., None]
# A case that takes longer hangs.
LIMIT = 120


def each(**values: list[Any]) -> Callable[[Case], Case]:
    """Runs a case for all combinations of these arguments."""

    def mark(case: Case) -> Case:
        case.values = values  # type: ignore[attr-defined]
        return case

    return mark


def combinations(case: Case) -> Iterator[dict[str, Any]]:
    values = getattr(case, "values", {})
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def run_case(case: Case, arguments: dict[str, Any]) -> str:
    """Why it has failed here; empty if it has not."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    try:
        case(**arguments)
    except Exception:
        return traceback.format_exc(limit=-6)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return ""


def run_all(modules: list[Any], words: list[str], hvd: Any, where: str) -> bool:
    """Runs all cases of these modules on all ranks; rank 0 says how they ended. True if all passed."""
    failed, passed = [], 0
    for module in modules:
        for case in [value for key, value in vars(module).items() if key.startswith("test_")]:
            for arguments in combinations(case):
                title = f"{module.__name__}.{case.__name__}" + "".join(f" {k}={v}" for k, v in arguments.items())
                if words and not any(word in title for word in words):
                    continue
                reason = run_case(case, arguments)
                if reason:
                    print(f"FAILED {title} on rank {hvd.rank()}:\n{reason}", flush=True)
                # If the job itself has failed this raises, and the launcher shows why.
                if any(hvd.allgather_object(reason, name=f"verdict/{title}")):
                    failed.append(title)
                else:
                    passed += 1
    first, ranks = hvd.rank() == 0, hvd.size()
    hvd.shutdown()
    right = bool(passed) and not failed
    if first:
        for title in failed:
            print(f"FAILED {title}")
        verdict = "passed" if right else "FAILED"
        print(
            f"python/tests/gpu: {verdict}: {passed} cases right, {len(failed)} wrong, {ranks} ranks on {where}",
            flush=True,
        )
    return right
