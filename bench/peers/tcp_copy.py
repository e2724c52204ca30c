"""What a plain TCP connection can carry: large sends one way or both ways at once, for a while.

`tcp_copy.py listen|connect ADDRESS SECONDS one|both`. Prints the bit/s of payload it received (0 when it only sent), as
counted between the first and the last byte. Python's share is negligible: each call moves a large block.
"""

from __future__ import annotations

import socket
import sys
import threading
import time

PORT = 47011
BLOCK = 1 << 20
WARM_UP_S = 0.3


def send_for(link: socket.socket, seconds: float) -> None:
    block = bytes(BLOCK)
    end = time.monotonic() + WARM_UP_S + seconds
    while time.monotonic() < end:
        link.sendall(block)
    link.shutdown(socket.SHUT_WR)


def receive_all(link: socket.socket) -> float:
    """Bit/s after the warm-up, until the other end has sent all."""
    block = bytearray(BLOCK)
    begin = time.monotonic() + WARM_UP_S
    total, first, last = 0, 0.0, 0.0
    while count := link.recv_into(block):
        now = time.monotonic()
        if now < begin:
            continue
        if first:
            total += count
        else:
            first = now
        last = now
    return 8 * total / (last - first) if last > first else 0.0


def meet(role: str, address: str) -> socket.socket:
    if role == "connect":
        return socket.create_connection((address, PORT))
    with socket.create_server((address, PORT)) as listener:
        print("listening", flush=True)
        return listener.accept()[0]


def main() -> None:
    role, address, seconds, ways = sys.argv[1:]
    received: list[float] = [0.0]
    with meet(role, address) as link:
        sends, receives = role == "connect" or ways == "both", role == "listen" or ways == "both"
        sender = threading.Thread(target=send_for, args=(link, float(seconds)))
        if sends:
            sender.start()
        if receives:
            received[0] = receive_all(link)
        if sends:
            sender.join()
    print(received[0])


if __name__ == "__main__":
    main()
