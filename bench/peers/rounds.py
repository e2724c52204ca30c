"""The server of rounds: what every contestant written in Python shares.

Owns the line protocol (bench/README.md), the side channel between the ranks of one contestant, the timed loop and the
check of the sums. Knows no library: a `Peer` brings the collective. Used by gloo_rounds, mpi_rounds and memcpy_rounds.

Between rounds every rank blocks in `recv` on the side channel, a Unix socket, and not in a call of its library: an MPI
rank that waits inside MPI spins, and would take a core from whichever contestant is being measured.
"""

from __future__ import annotations

import gc
import json
import socket
import statistics
import struct
import sys
import time
from typing import Protocol

import numpy as np

CONNECT_LIMIT_S = 90


class Peer(Protocol):
    """One rank of a library under test."""

    rank: int
    size: int
    version: str
    sums: bool  # False for a contestant that only copies: nothing to verify

    def load(self, buffer: np.ndarray) -> None:
        """Makes `buffer` the one that `step` works on, in place."""

    def barrier(self) -> None:
        """Returns when all ranks are here, as closely together as the library can."""

    def step(self) -> None:
        """One sum allreduce of the loaded buffer."""


class SideChannel:
    """A star of Unix sockets with rank 0 in the middle; carries commands out and times back, never payload."""

    def __init__(self, rank: int, size: int, path: str) -> None:
        self.rank = rank
        if rank == 0:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(size)
                listener.settimeout(CONNECT_LIMIT_S)
                self.links = [listener.accept()[0] for _ in range(size - 1)]
            for link in self.links:
                link.settimeout(None)
        else:
            self.links = [connect(path)]

    def broadcast(self, message: bytes) -> bytes:
        """Rank 0's message, on every rank; empty when rank 0 is gone."""
        if self.rank == 0:
            for link in self.links:
                send(link, message)
            return message
        return receive(self.links[0])

    def gather(self, message: bytes) -> list[bytes]:
        """Every rank's message, on rank 0; nothing elsewhere."""
        if self.rank == 0:
            return [message] + [receive(link) for link in self.links]
        send(self.links[0], message)
        return []


def connect(path: str) -> socket.socket:
    """Connects to rank 0, which may not listen yet."""
    give_up = time.monotonic() + CONNECT_LIMIT_S
    while True:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(path)
            return link
        except OSError:
            link.close()
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def send(link: socket.socket, message: bytes) -> None:
    link.sendall(struct.pack("<Q", len(message)) + message)


def receive(link: socket.socket) -> bytes:
    header = receive_exactly(link, 8)
    return receive_exactly(link, struct.unpack("<Q", header)[0]) if header else b""


def receive_exactly(link: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            return b""
        data += part
    return bytes(data)


class Command:
    """`allreduce <bytes> <iterations> <warmup> [form]`, parsed."""

    def __init__(self, line: str) -> None:
        words = line.split()
        if len(words) not in (4, 5) or words[0] != "allreduce":
            raise ValueError(f"not a command: {line!r}")
        self.bytes, self.iterations, self.warmup = (int(word) for word in words[1:4])
        self.form = words[4] if len(words) == 5 else None
        if self.bytes < 4 or self.bytes % 4 or self.iterations < 1 or self.warmup < 0:
            raise ValueError(f"bytes must be a positive multiple of 4, iterations at least 1: {line!r}")
        if self.form not in (None, "private"):
            raise ValueError(f"this contestant has only the form `private`, not {self.form!r}")


def serve(peer: Peer, channel: SideChannel) -> None:
    """Answers commands until `quit` or the end of rank 0's stdin."""
    runner = Runner(peer, channel)
    if peer.rank == 0:
        say({"ready": True, "ranks": peer.size, "version": peer.version})
        lead(runner, channel)
    else:
        while line := channel.broadcast(b"").decode():
            runner.run(Command(line))


def lead(runner: Runner, channel: SideChannel) -> None:
    """Rank 0: only commands that parse reach the other ranks."""
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        try:
            command = Command(line)
        except ValueError as error:
            say({"error": str(error)})
            continue
        channel.broadcast(line.encode())
        say(runner.run(command))
    channel.broadcast(b"")


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


class Runner:
    """Runs commands on this rank; keeps one buffer, that of the size asked for last."""

    def __init__(self, peer: Peer, channel: SideChannel) -> None:
        self.peer = peer
        self.channel = channel
        self.buffer = np.empty(0, np.float32)

    def run(self, command: Command) -> dict[str, object]:
        """One round; the answer on rank 0, an empty one elsewhere."""
        if self.buffer.nbytes != command.bytes:
            self.prepare(command.bytes)
        for _ in range(command.warmup):
            self.peer.step()
        times = self.timed_loop(command.iterations)
        everyone = [np.frombuffer(message, np.int64) for message in self.channel.gather(times.tobytes())]
        return answer(command, everyone) if everyone else {}

    def prepare(self, size: int) -> None:
        """A new buffer, all its pages touched; the first sum of known values is checked on every rank."""
        self.buffer = np.empty(size // 4, np.float32)
        pattern = np.arange(self.buffer.size, dtype=np.float32) % 8
        self.buffer[:] = pattern + (self.peer.rank + 1)
        self.peer.load(self.buffer)
        self.peer.step()
        if self.peer.sums:
            ranks = self.peer.size
            right = np.array_equal(self.buffer, ranks * pattern + ranks * (ranks + 1) / 2)
            verdicts = self.channel.gather(b"right" if right else b"wrong")
            if b"wrong" in verdicts:
                ranks_wrong = [rank for rank, verdict in enumerate(verdicts) if verdict != b"right"]
                say({"error": f"wrong sum of {size} bytes on ranks {ranks_wrong}"})
                raise SystemExit(1)
        # Sums of zeros stay zero however often they are repeated: no overflow, no denormals.
        self.buffer[:] = 0

    def timed_loop(self, iterations: int) -> np.ndarray:
        """Nanoseconds of each iteration on this rank: from the end of the one before to its own end."""
        step, clock = self.peer.step, time.perf_counter_ns
        ends = [0] * (iterations + 1)
        gc.disable()
        self.peer.barrier()
        ends[0] = clock()
        for index in range(1, iterations + 1):
            step()
            ends[index] = clock()
        gc.enable()
        return np.diff(np.array(ends, np.int64))


def answer(command: Command, everyone: list[np.ndarray]) -> dict[str, object]:
    """Each iteration counts as long as on its slowest rank; the mean is of the whole loop on its slowest rank."""
    slowest = np.max(everyone, axis=0) / 1000
    return {
        "op": "allreduce",
        "form": command.form,
        "bytes": command.bytes,
        "iterations": command.iterations,
        "median_us": statistics.median(slowest.tolist()),
        "min_us": float(slowest.min()),
        "p90_us": float(np.percentile(slowest, 90)),
        "mean_us": float(max(times.mean() for times in everyone) / 1000),
    }
