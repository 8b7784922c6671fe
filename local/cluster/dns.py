"""One question to a DNS server, enough to know that it answers."""

import secrets
import socket
import struct

TIMEOUT = 2.0  # seconds


def problem(server: str, name: str, port: int = 53) -> str | None:
    """What is wrong when ``server`` is asked for the IPv4 address of ``name``; None when it knows one.

    Raises:
        OSError: nothing answers within TIMEOUT.
    """
    identity = secrets.randbits(16)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    # RFC 1035, 4.1: recursion desired, one question, type A, class IN.
    question = struct.pack(">HHHHHH", identity, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.settimeout(TIMEOUT)
        asked.connect((server, port))
        asked.send(question)
        answer = asked.recv(4096)
    if len(answer) < 12:
        return f"{server} does not speak DNS"
    got, flags, _, answers = struct.unpack(">HHHH", answer[:8])
    if got != identity or flags & 0xF or not answers:
        return f"{server} has no address for {name} (response code {flags & 0xF}, {answers} answers)"
    return None
