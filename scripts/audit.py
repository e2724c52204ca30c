"""What we depend on: licences we may ship and crates we must not (deny.toml), and known weaknesses of crates and packages.

audit.py          everything; installs cargo-deny (minutes) and pip-audit where they are missing
audit.py --quick  licences and crates, by cargo-deny or without it, and weaknesses of the packages that users get: `make lint`

Weaknesses are looked up in databases on the internet. Where those can't be reached, that is said, and is no failure.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
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


def without_cargo_deny() -> bool:
    """The rules of deny.toml about licences, banned crates and sources, as far as `cargo metadata` can tell."""
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    allowed = set(rules["licenses"]["allow"])
    banned = {entry["crate"]: entry["reason"] for entry in rules["bans"]["deny"]}
    listed = call("cargo", "metadata", "--format-version", "1", "--locked")
    if listed.returncode:
        print(listed.stderr, file=sys.stderr)
        return False
    metadata = json.loads(listed.stdout)
    crates = {crate["id"]: crate for crate in metadata["packages"]}
    wrong = []
    for crate in (crates[name] for name in shipped(metadata)):
        label, source = f"{crate['name']} {crate['version']}", crate["source"]
        if not permitted(crate["license"] or "", allowed):
            wrong.append(f"{label} has the licence {crate['license']}, which deny.toml does not allow")
        if crate["name"] in banned:
            wrong.append(f"{label} is banned by deny.toml: {banned[crate['name']]}")
        if source is not None and source != "registry+https://github.com/rust-lang/crates.io-index":
            wrong.append(f"{label} is not from crates.io but from {source}")
    for line in wrong:
        print(f"audit: {line}", file=sys.stderr)
    return not wrong


def shipped(metadata: dict) -> set[str]:
    """The ids of our crates and of all they need, but for what only tests need."""
    needs = {
        node["id"]: [d["pkg"] for d in node["deps"] if any(kind["kind"] != "dev" for kind in d["dep_kinds"])]
        for node in metadata["resolve"]["nodes"]
    }
    found, open_ends = set(), list(metadata["workspace_members"])
    while open_ends:
        crate = open_ends.pop()
        if crate not in found:
            found.add(crate)
            open_ends += needs[crate]
    return found


def permitted(licence: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be met with these licences. `/` is how old crates write `OR`."""
    words = re.findall(r"[()]|[^\s()]+(?:\s+WITH\s+[^\s()]+)?", licence.replace("/", " OR "))

    def either() -> bool:
        good = both()
        while words and words[0] == "OR":
            words.pop(0)
            good = both() or good
        return good

    def both() -> bool:
        good = one()
        while words and words[0] == "AND":
            words.pop(0)
            good = one() and good
        return good

    def one() -> bool:
        word = words.pop(0) if words else ""
        if word == "(":
            good = either()
            return bool(words) and words.pop(0) == ")" and good
        return " ".join(word.split()) in allowed

    return either() and not words


def users_packages() -> bool:
    """What `pip install corro` brings with it has no known weaknesses."""
    try:
        # Where pip-audit looks. A mirror of packages need not have it.
        urllib.request.urlopen("https://pypi.org/pypi/cloudpickle/2.0.0/json", timeout=5).close()
    except OSError:
        print("audit: the database of weaknesses of packages can't be reached from here: not looked up")
        return True
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(needed))
        file.flush()
        audit = call(pip_audit(), "--progress-spinner", "off", "--requirement", file.name)
    if audit.returncode:
        print(audit.stdout, audit.stderr, sep="\n", file=sys.stderr)
    return audit.returncode == 0


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
    installed = call("cargo", "deny", "--version").returncode == 0
    return 0 if all([deny(*RULES) if installed else without_cargo_deny(), users_packages()]) else 1


if __name__ == "__main__":
    sys.exit(main())
