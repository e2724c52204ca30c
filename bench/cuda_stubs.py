#!/usr/bin/env python3
"""Lets PyPI's torch be imported without 4 GB of CUDA libraries that Gloo never calls.

Owns: one empty stand-in for each NVIDIA library that libtorch names as needed but that is not installed. PyPI has no
CPU-only torch for Linux; its libraries refuse to load unless every NEEDED library and every symbol resolves, even where
there is no GPU. The symbols are read from the torch that is installed, so the stand-ins follow its version. Every
function of a stand-in returns an error code. The real `libcudart` is installed (it is under 1 MB and its registration
functions run when torch is loaded); it finds no driver and torch reports no CUDA.

Never changes torch's own files, and never replaces a library that is there. Called by `bench/setup`; not meant for any
environment in which somebody wants to use CUDA.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# How the symbols of a library are recognised: by their version tag (`cublasCreate_v2@libcublas.so.13`), or, in
# libraries without tags, by how their names begin.
BY_TAG = tuple(
    f"lib{name}.so"
    for name in ("cublas", "cublasLt", "cudnn", "cufft", "curand", "cusolver", "cusparse", "nvrtc", "cupti")
)
BY_PREFIX = {"libnccl.so": "nccl", "libcusparseLt.so": "cusparseLt", "libcufile.so": "cuFile"}
TAG_OF = {"libnvshmem_host.so": "NVSHMEM"}


def needed_and_undefined(library: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """The NEEDED names of a library, and its undefined symbols as (name, version tag or "")."""
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-dW", library)))
    symbols = set()
    for line in output_of("nm", "-D", "--undefined-only", library).splitlines():
        name, _, tag = line.split()[-1].partition("@")
        symbols.add((name, tag.lstrip("@")))
    return needed, symbols


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def stem(soname: str) -> str:
    """`libcublas.so.13` -> `libcublas.so`."""
    return soname[: soname.index(".so") + 3]


def symbols_of(soname: str, undefined: set[tuple[str, str]]) -> tuple[str, list[str]] | None:
    """The version tag ("" for none) and the symbols a stand-in for `soname` must offer; None if it is none of ours."""
    base = stem(soname)
    if base in BY_PREFIX:
        return "", sorted({name for name, tag in undefined if not tag and name.startswith(BY_PREFIX[base])})
    if base in BY_TAG or base in TAG_OF:
        wanted = TAG_OF.get(base, soname)
        return wanted, sorted({name for name, tag in undefined if tag == wanted})
    return None


def build_stub(soname: str, tag: str, names: list[str], target: Path) -> None:
    """Compiles one stand-in; each function returns 1, which all these libraries read as a failure."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "stub.c")
        source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in names))
        options = ["-shared", "-fPIC", "-w", "-fno-builtin", "-O1", f"-Wl,-soname,{soname}", "-o", str(target)]
        if tag and names:
            script = Path(scratch, "stub.map")
            script.write_text(f"{tag} {{ global: {' '.join(f'{name};' for name in names)} local: *; }};\n")
            options.append(f"-Wl,--version-script={script}")
        subprocess.run(["cc", *options, str(source)], check=True)


def main() -> None:
    site = Path(sys.argv[1])
    lib = site / "torch" / "lib"
    needed: set[str] = set()
    undefined: set[tuple[str, str]] = set()
    for library in [*lib.glob("*.so"), *(site / "torch").glob("_C*.so")]:
        more_needed, more_undefined = needed_and_undefined(library)
        needed |= more_needed
        undefined |= more_undefined
    present = {path.name for path in [*lib.iterdir(), *site.glob("nvidia/*/lib/*")]}
    for soname in sorted(needed - present):
        if found := symbols_of(soname, undefined):
            build_stub(soname, *found, lib / soname)
            print(f"stand-in for {soname}: {len(found[1])} functions")


if __name__ == "__main__":
    main()
