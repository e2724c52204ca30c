"""Checks that tests and wheel are one build: every crate has the same features in both.

Cargo compiles a crate once for each set of features. Tests bring dependencies of their own (proptest, shuttle), which ask
features of crates that the wheel has too; if the wheel alone would go without them, everything above those crates would be
compiled twice. Run by `make lint`.
"""

import subprocess
import sys

# What scripts/wheel builds: first both at once, then what maturin packs.
SHIPPED = [["corro-python", "corro-launch"], ["corro-python"]]


def features(*arguments: str) -> dict[str, set[str]]:
    """The sets of features each crate is compiled with: what build scripts and macros use may be there once more."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p}\t{f}", *arguments]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found: dict[str, set[str]] = {}
    for line in filter(None, lines):
        # A crate that was shown before has a mark at its end.
        name, several = line.removesuffix(" (*)").split("\t")
        found.setdefault(name, set()).add(several)
    return found


def main() -> int:
    tests = features("--workspace", "--edges", "normal,build,dev")
    differ = {}
    for selection in SHIPPED:
        packages = [word for name in selection for word in ("--package", name)]
        wheel = features(*packages, "--edges", "normal,build")
        differ |= {name: wheel[name] for name in wheel if not wheel[name] <= tests[name]}
    for name, found in differ.items():
        print(
            f"one_build: {name} has the features {found} in the wheel and {tests[name]} in the tests: give it those "
            "in [workspace.dependencies], and to corro-python if no shipped crate names it",
            file=sys.stderr,
        )
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
