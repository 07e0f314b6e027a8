"""zmtp.py: a question to a root or a relay over its socket file, by hand: ZMTP 3.0 without keys, and the frames of
docs/FRAME.md.

A console takes a tenth of a second to start, which is too long where it is measured how soon a daemon answers again.
"""
import json
import socket
import struct

HEAD = struct.Struct("<4sBBHIHHIIQQQII")
QUERY, REPLY = 11, 12
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(kind, payload):
    parts = [b"RLFR", 1, 1, kind, 0, HEAD.size, 0, 0, len(payload), 1, 0, 0, 0, 0]
    parts[12] = crc32c(HEAD.pack(*parts) + payload)
    return HEAD.pack(*parts) + payload


def take(s, count):
    data = b""
    while len(data) < count:
        more = s.recv(count - len(data))
        if not more:
            raise OSError("it has gone away")
        data += more
    return data


def part(s):
    """The flags and bytes of one part of a message."""
    flags = take(s, 1)[0]
    size = struct.unpack(">Q", take(s, 8))[0] if flags & 2 else take(s, 1)[0]
    return flags, take(s, size)


def ask(path, question, seconds=5.0):
    """What the daemon that listens at this socket file answers; OSError when it does not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(seconds)
        s.connect(path)
        s.sendall(GREETING)
        take(s, len(GREETING))
        s.sendall(bytes([4, len(READY)]) + READY)
        part(s)
        words = frame(QUERY, json.dumps(question).encode())
        s.sendall(bytes([2]) + struct.pack(">Q", len(words)) + words)
        while True:
            flags, data = part(s)
            if flags & 4 == 0 and len(data) >= HEAD.size and HEAD.unpack(data[:HEAD.size])[3] == REPLY:
                return json.loads(data[HEAD.size:])
