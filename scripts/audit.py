"""What we depend on: licences we may ship and crates we must not (deny.toml), and known weaknesses of crates and packages.

audit.py          everything; installs cargo-deny (minutes) and pip-audit where they are missing
audit.py --quick  licences and crates only, if cargo-deny is there: the part of `make lint`

Weaknesses are looked up in databases on the internet. Where those can't be reached, that is said, and is no failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP_AUDIT = "2.10.1"
RULES = ["licenses", "bans", "sources"]


def call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def deny(*what: str) -> bool:
    """Whether cargo-deny is content; else shows why not."""
    checked = call("cargo", "deny", "--log-level", "error", "check", "--hide-inclusion-graph", *what)
    if checked.returncode:
        print(checked.stderr or checked.stdout, file=sys.stderr)
    return checked.returncode == 0


def crates() -> bool:
    subprocess.run(["scripts/rust_tools", "deny"], cwd=ROOT, check=True)
    good = deny(*RULES)
    if call("cargo", "deny", "fetch", "db").returncode:
        print("audit: the database of weaknesses of crates can't be reached from here: not looked up")
        return good
    return deny("advisories") and good


def pip_audit() -> str:
    """The program, in an environment of its own."""
    place = ROOT / ".venv-audit"
    program = place / "bin" / "pip-audit"
    if not program.exists() or call(str(program), "--version").stdout.strip() != f"pip-audit {PIP_AUDIT}":
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        install = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, f"pip-audit=={PIP_AUDIT}"], check=True)
    return str(program)


def packages() -> bool:
    program, good, skipped, known = pip_audit(), True, set(), 0
    for pins in sorted((ROOT / "python" / "requirements").glob("*.txt")):
        words = [
            "--format",
            "json",
            "--progress-spinner",
            "off",
            "--no-deps",
            "--disable-pip",
            "--requirement",
            str(pins),
        ]
        audit = call(program, *words)
        if not audit.stdout:
            print(f"audit: pip-audit of {pins.name} failed:\n{audit.stderr}", file=sys.stderr)
            good = False
            continue
        for package in json.loads(audit.stdout)["dependencies"]:
            if "skip_reason" in package:
                skipped.add(package["name"])
                continue
            known += 1
            for weakness in package["vulns"]:
                good = False
                print(f"audit: {package['name']} {package['version']} ({pins.name}): {weakness['id']}", file=sys.stderr)
    if skipped:
        print(
            f"audit: the database knows nothing of {len(skipped)} of {known + len(skipped)} pinned packages from here: not looked up"
        )
    return good


def main() -> int:
    if "--quick" not in sys.argv[1:]:
        return 0 if all([crates(), packages()]) else 1
    if call("cargo", "deny", "--version").returncode:
        print("audit: cargo-deny is not installed here: licences were not checked ('make audit' installs it)")
        return 0
    return 0 if deny(*RULES) else 1


if __name__ == "__main__":
    sys.exit(main())
