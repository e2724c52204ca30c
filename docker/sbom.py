"""Writes what an image holds as a CycloneDX list: Python packages, the crates inside their wheels, packages of the system.

Run as `python3 sbom.py FILE`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote


def component(kind: str, name: str, version: str, licence: str = "") -> dict[str, Any]:
    """One entry; `kind` is the word of package URLs: pypi, deb."""
    purl = f"pkg:{kind}/{quote(name, safe='/')}@{quote(version)}"
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if licence:
        entry["licenses"] = [{"license": {"name": licence}}]
    return entry


def of_python() -> list[dict[str, Any]]:
    """Every package that this Python can import, and what their wheels say they have inside."""
    found: list[dict[str, Any]] = []
    for package in distributions():
        metadata = package.metadata
        name = metadata["Name"].lower().replace("_", "-")
        licence = metadata.get("License-Expression") or ""
        found.append(component("pypi", name, package.version, licence))
        found.extend(inside(package))
    return found


def inside(package: Distribution) -> list[dict[str, Any]]:
    """What a wheel's own lists name: builders that know leave them in `*.dist-info/sboms`."""
    lists = [file for file in package.files or [] if ".dist-info/sboms/" in str(file) and str(file).endswith(".json")]
    texts = [Path(str(package.locate_file(file))).read_text(encoding="utf-8") for file in lists]
    entries: list[dict[str, Any]] = []
    for text in texts:
        entries.extend(json.loads(text).get("components", []))
    return entries


def of_system() -> list[dict[str, Any]]:
    """Debian's and Ubuntu's packages; none where there is no dpkg."""
    try:
        command = ["dpkg-query", "--show", "--showformat=${Package}\t${Version}\n"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [component("deb", *line.split("\t")) for line in text.splitlines()]


def main() -> None:
    """Each thing once, in the order of their names."""
    unique = {entry.get("purl") or entry.get("bom-ref"): entry for entry in of_python() + of_system()}
    components = sorted(unique.values(), key=lambda entry: (entry["name"], entry.get("version", "")))
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
