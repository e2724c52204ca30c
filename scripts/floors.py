"""Checks that code flows one way: a crate may depend only on crates of lower floors.

Run by `make lint`. A new crate must be given a floor here, which is the moment to ask whether it earns its door.
"""

import json
import subprocess
import sys

FLOORS = {
    "corro-core": 0,
    "corro-kernels": 1,
    "corro-cuda": 1,
    "corro-log": 1,
    "corro-observe": 1,
    "corro-mpi": 2,
    "corro-compress": 2,
    "corro-transport": 2,
    "corro-collectives": 3,
    "corro-agreement": 3,
    "corro-membership": 3,
    "corro-server": 3,
    "corro-planes": 4,
    "corro-engine": 5,
    "corro-capi": 6,
    "corro-launch": 6,
    "corro-python": 7,
    # For tests, above all floors: whoever does not name it as a dev-dependency would depend upwards.
    "corro-testing": 8,
    # Not part of the house: they use it.
    "corro-example": 9,
    "corro-bench": 9,
    "corro-fuzz": 9,
}

# The launcher starts programs; it must not know what they do. Agreement is pure: it must not know how bytes move.
FORBIDDEN = {("corro-launch", "corro-collectives"), ("corro-agreement", "corro-transport")}


def main() -> int:
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["packages"]
    wrong = []
    for package in packages:
        name = package["name"]
        if name not in FLOORS:
            wrong.append(f"{name} has no floor: give it one in scripts/floors.py")
            continue
        for dependency in package["dependencies"]:
            # Tests may look at the house from outside.
            if dependency["kind"] == "dev":
                continue
            other = dependency["name"]
            if other in FLOORS and FLOORS[other] >= FLOORS[name]:
                wrong.append(f"{name} (floor {FLOORS[name]}) depends on {other} (floor {FLOORS[other]}): code flows down only")
            if (name, other) in FORBIDDEN:
                wrong.append(f"{name} must not depend on {other}")
    for line in wrong:
        print(f"floors: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
