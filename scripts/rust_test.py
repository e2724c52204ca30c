"""Runs the tests of the Rust crates, each in a process of its own, and kills what takes too long.

rust_test.py [-p CRATE]... [--kind KIND] [WORD]... [-- OPTIONS OF CARGO TEST]

Without words all tests run; else those whose name, as `crate/program::test`, contains one of them. Tests that wait for
processes and limits run many at a time, beside as many as there are cores of those that compute. What fails is shown at
once and named at the end, as are tests that were left out. `target/rust-tests.xml` (JUnit) has how long each took.

This is cargo-nextest's way of running tests; docs/design/testing.md says why it is not nextest itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
CORES = os.cpu_count() or 1

# Which tests go where (the first that fits), and how many of each kind run at a time.
KINDS = [
    # Network namespaces, bridges and sshd: more at a time are slower, not quicker.
    ("hosts", 2, re.compile(r"^corro-launch/suite::(elastic_)?hosts::")),
    # They start processes, kill or stop them, and wait until a limit has passed.
    ("waiting", 2 * CORES, re.compile(r"^corro-launch/suite::|/suite::(processes|faults|store_server|tcp_endpoint)::")),
    ("computing", CORES, re.compile("")),
]
# The slowest takes well below a minute on two busy cores. Under sanitizers all takes longer.
LIMIT = float(os.environ.get("CORRO_TEST_LIMIT", 300))


@dataclasses.dataclass(frozen=True)
class Test:
    program: Path
    folder: Path
    # `crate/program`, and the test's name in it.
    suite: str
    name: str

    def __str__(self) -> str:
        return f"{self.suite}::{self.name}"


@dataclasses.dataclass(frozen=True)
class Result:
    test: Test
    seconds: float
    # Empty if it passed.
    why: str
    output: str


def build(arguments: list[str]) -> list[tuple[Path, Path, str]]:
    """The test programs: file, folder of the crate, `crate/program`."""
    command = ["cargo", "test", "--no-run", "--locked", "--message-format=json-render-diagnostics", *arguments]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    programs = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = Path(message["manifest_path"]).parent
            # `path+file:///.../corro-core#0.1.0`, or `...#corro-core@0.1.0` where the folder has another name.
            crate = re.split(r"[#@]", message["package_id"].split("/")[-1])
            crate = crate[1] if len(crate) > 2 else crate[0]
            programs.append((Path(message["executable"]), folder, f"{crate}/{message['target']['name']}"))
    return programs


def kind_of(test: Test) -> str:
    return next(name for name, _, pattern in KINDS if pattern.search(str(test)))


def listed(program: Path, ignored: bool) -> list[str]:
    command = [str(program), "--list", "--format", "terse", *(["--ignored"] if ignored else [])]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return [line.removesuffix(": test") for line in lines if line.endswith(": test")]


def environment(folder: Path) -> dict[str, str]:
    """As cargo gives it to tests."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], stdout=subprocess.PIPE, text=True, check=True).stdout
    libraries = [str(folder), f"{sysroot.strip()}/lib", os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(filter(None, libraries))}


def run(test: Test, variables: dict[str, str]) -> Result:
    command = [str(test.program), "--exact", test.name, "--nocapture", "--include-ignored"]
    begin, why = time.monotonic(), ""
    # A file, not a pipe: nobody waits for a process that outlives the test and holds its output.
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            command,
            cwd=test.folder,
            env=variables | {"CARGO_MANIFEST_DIR": str(test.folder)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            # A group of its own, which ends with it.
            process_group=0,
        )
        try:
            status = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            why = f"killed after {LIMIT:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        file.seek(0)
        output = file.read().decode(errors="replace")
    if not why and status:
        why = f"signal {-status}" if status < 0 else f"status {status}"
    elif not why and "\ntest result: ok. 1 passed" not in output:
        why = "it did not run"
    return Result(test, time.monotonic() - begin, why, output)


def run_all(tests: list[Test], variables: dict[str, str]) -> list[Result]:
    pools = {name: ThreadPoolExecutor(count) for name, count, _ in KINDS}
    try:
        kind = {test: kind_of(test) for test in tests}
        futures = [pools[kind[test]].submit(run, test, variables) for test in tests]
        results = []
        for future in as_completed(futures):
            result = future.result()
            results.append(result)
            if result.why:
                print(f"\n--- {result.test}: {result.why}\n{result.output}", flush=True)
            elif sys.stdout.isatty():
                print(f"\r{len(results)} of {len(tests)}", end="", flush=True)
        return results
    finally:
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)


def write_report(results: list[Result], path: Path) -> None:
    suite = ElementTree.Element("testsuite", name="rust")
    for result in results:
        where = {"classname": result.test.suite, "name": result.test.name, "time": f"{result.seconds:.3f}"}
        case = ElementTree.SubElement(suite, "testcase", where)
        if result.why:
            ElementTree.SubElement(case, "failure", message=result.why)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="unicode")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-p", "--package", action="append", help="only this crate's tests")
    parser.add_argument("--kind", choices=[name for name, _, _ in KINDS], help="only tests of this kind")
    parser.add_argument("--ignored", action="store_true", help="only tests that are ignored: name them as well")
    parser.add_argument("--build", action="store_true", help="only compile")
    parser.add_argument("--report", type=Path, default=ROOT / "target" / "rust-tests.xml")
    parser.add_argument("words", nargs="*")
    ours, cargos = sys.argv[1:], []
    if "--" in ours:
        at = ours.index("--")
        ours, cargos = ours[:at], ours[at + 1 :]
    options = parser.parse_args(ours)
    packages = [word for name in options.package or [] for word in ("--package", name)] or ["--workspace"]

    begin = time.monotonic()
    programs = build([*packages, *cargos])
    if options.build:
        return 0
    compiled = time.monotonic()
    tests = []
    for program, folder, suite in programs:
        ignored = set(listed(program, ignored=True))
        for name in listed(program, ignored=False):
            test = Test(program, folder, suite, name)
            wanted = not options.words or any(word in str(test) for word in options.words)
            wanted = wanted and options.kind in (None, kind_of(test))
            if wanted and (name in ignored) == options.ignored:
                tests.append(test)
    if not tests:
        print("rust_test: there is no such test", file=sys.stderr)
        return 2
    skipped = ROOT / "target" / "skipped-tests.txt"
    skipped.unlink(missing_ok=True)
    variables = environment(programs[0][0].parent) | {"CORRO_TEST_SKIPPED": str(skipped)}
    results = run_all(tests, variables)
    write_report(results, options.report)

    print(f"\n{len(results)} tests: {compiled - begin:.0f} s to compile, {time.monotonic() - compiled:.0f} s to run")
    if skipped.exists():
        print("left out:", *sorted(set(skipped.read_text().splitlines())), sep="\n  ")
    failed = [result for result in results if result.why]
    for result in failed:
        print(f"FAILED {result.test}: {result.why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
