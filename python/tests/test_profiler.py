"""Ranges for NVIDIA's profilers, as a library in NVTX's place hears of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from test_jobs import run_job

LIBRARY = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
struct attributes {
    uint16_t version, size; uint32_t category; int32_t kinds[4]; uint64_t payload; int32_t type; const char *text;
};
static uint64_t last;
static void note(const char *what, void *domain, uint64_t id, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", getenv("CORRO_TEST_RANGES"), getenv("HOROVOD_RANK"));
    FILE *file = fopen(path, "a");
    fprintf(file, "%s|%s|%lu|%s\n", what, (char *)domain, id, text);
    fclose(file);
}
void *nvtxDomainCreateA(const char *name) { return (void *)name; }
uint64_t nvtxDomainRangeStartEx(void *domain, const struct attributes *a) {
    if (a->version != 2 || a->size != sizeof *a || a->type != 1) abort();
    note("start", domain, ++last, a->text);
    return last;
}
void nvtxDomainRangeEnd(void *domain, uint64_t id) { note("end", domain, id, ""); }
"""

JOB = """
import numpy as np, corro.numpy as hvd
hvd.init()
for _ in range(3):
    hvd.allreduce(np.ones(4, np.float32), name="weights")
hvd.shutdown()
"""


def ranges(folder: Path, **variables: str) -> list[list[str]]:
    script = folder / "job.py"
    script.write_text(JOB)
    known = os.environ.get("LD_LIBRARY_PATH", "")
    paths = f"{folder}:{known}" if known else str(folder)
    marks = str(folder / "ranges")
    job = run_job(2, sys.executable, str(script), LD_LIBRARY_PATH=paths, CORRO_TEST_RANGES=marks, **variables)
    assert job.returncode == 0, job.stderr[-3000:]
    heard = folder / "ranges.1"
    return [line.split("|") for line in heard.read_text().splitlines()] if heard.exists() else []


def test_a_profiler_sees_operations_and_what_they_do(tmp_path: Path) -> None:
    source = tmp_path / "nvtx.c"
    source.write_text(LIBRARY)
    library = tmp_path / "libnvtx3interop.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    heard = ranges(tmp_path, NVTX_INJECTION64_PATH="a profiler")
    begun = [(domain, text) for what, domain, _, text in heard if what == "start" and "weights" in text]
    assert begun.count(("HorovodOps", "ALLREDUCE allreduce.weights")) == 3, heard
    assert begun.count(("HorovodTimeline", "NEGOTIATE_ALLREDUCE allreduce.weights")) == 3, heard
    assert begun.count(("HorovodTimeline", "ALLREDUCE allreduce.weights")) == 3, heard
    assert begun.count(("HorovodTimelineActivities", "CORRO_ALLREDUCE allreduce.weights (host)")) == 3, heard
    started = {number for what, _, number, _ in heard if what == "start"}
    ended = {number for what, _, number, _ in heard if what == "end"}
    assert started == ended, "what begins ends"


def test_without_a_profiler_or_on_request_nothing_is_opened(tmp_path: Path) -> None:
    # Whoever would open it would die of it.
    (tmp_path / "libnvtx3interop.so.1").write_text("no library")
    assert ranges(tmp_path) == []
    assert ranges(tmp_path, NVTX_INJECTION64_PATH="a profiler", HOROVOD_DISABLE_NVTX_RANGES="1") == []
