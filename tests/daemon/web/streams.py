"""Listeners of the page without a browser: a socket for each, signed in as a browser does it (HTTP Digest, SHA-256).

Those that read are read by one thread together; those that do not have a small buffer, and nobody ever reads it.
"""
import hashlib
import re
import selectors
import socket
import threading

PATIENCE_S = 120
UNREAD_BYTES = 4096  # of a buffer that nobody reads


def digest(*parts):
    return hashlib.sha256(":".join(parts).encode()).hexdigest()


def get(port, path, user=None, word=None, nonce=None, receive_bytes=0):
    """A connection on which this has been asked for."""
    s = socket.socket()
    s.settimeout(PATIENCE_S)
    if receive_bytes:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    s.connect(("127.0.0.1", port))
    asks = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    if nonce:
        answer = digest(digest(user, "rollcall", word), nonce, "00000001", "c", "auth", digest("GET", path))
        asks += (f'Authorization: Digest username="{user}", realm="rollcall", nonce="{nonce}", uri="{path}", cnonce='
                 f'"c", nc=00000001, qop=auth, algorithm=SHA-256, response="{answer}"\r\n')
    s.sendall((asks + "\r\n").encode())
    return s


def head(s):
    """What a connection is answered at first: the status, and as much of the rest as came with it."""
    said = b""
    while b"\r\n\r\n" not in said:
        more = s.recv(4096)
        if not more:
            break
        said += more
    found = re.match(rb"HTTP/1.1 (\d+)", said)
    if not found:
        raise AssertionError(f"no answer: {said!r}")
    return int(found[1]), said.decode()


class Streams:
    """Listeners of one run: add() adds one and says its status; all_told() asks what those that read were told."""

    def __init__(self, port, word, path="/api/listen"):
        self.port, self.word, self.path = port, word, path
        with get(port, path) as s:
            self.nonce = re.search(r'nonce="(\w+)"', head(s)[1])[1]
        self.open, self.told, self.lock, self.over = [], {}, threading.Lock(), False
        self.selector = selectors.DefaultSelector()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join()
        for s in self.open:
            s.close()
        self.selector.close()

    def add(self, reads):
        """The status, and the answer of one that was refused."""
        s = get(self.port, self.path, "viewer", self.word, self.nonce, 0 if reads else UNREAD_BYTES)
        status, said = head(s)
        if status != 200:
            with s:
                return status, said
        self.open.append(s)
        if reads:
            with self.lock:
                self.told[s] = said.encode()
                self.selector.register(s, selectors.EVENT_READ)
        return status, ""

    def fill(self):
        """Takes all the places that there are, and says how many of them it has."""
        while self.add(reads=True)[0] == 200:
            pass
        return len(self.open)

    def read(self):
        while not self.over:
            with self.lock:
                ready = [key.fileobj for key, _ in self.selector.select(0)]
                for s in ready:
                    more = s.recv(1 << 20)
                    self.told[s] += more
                    if not more:
                        self.selector.unregister(s)
            if not ready:
                threading.Event().wait(0.01)

    def forget(self):
        with self.lock:
            self.told = {s: b"" for s in self.told}

    def all_told(self, what):
        """Whether each of the readers was told this since it was asked to forget."""
        with self.lock:
            return all(what in said for said in self.told.values())
