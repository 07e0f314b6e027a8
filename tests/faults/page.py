"""page.py: what a browser asks of a daemon with a page, once each, and whether each answer is whole.

The daemon may have a fault. Then an answer may be an error, or none at all; what it may not be is one that says 200 and
lacks something. http.client stands for the browser, so that a connection that is shut can be told from an answer.
"""
import hashlib
import http.client
import json
import os
import re
import subprocess
import urllib.request

WAIT_S = 60  # only a hang reaches it
NONE = b"none"


def ask(rollcall, endpoint, environment):
    """{asked/NAME: the answer, with its status}: what `rollcall page` says, and what is there."""
    got = subprocess.run([rollcall, "page", "--daemon", endpoint], env={**os.environ, **environment},
                         capture_output=True, check=False)
    answers = {"asked/page": b"%d\n%s%s" % (got.returncode, got.stdout, got.stderr)}
    told = re.search(r"http://127\.0\.0\.1:(\d+)/\nuser +(\S+)\npassword +(\S+)", got.stdout.decode())
    if told:
        port, user, password = int(told[1]), told[2], told[3]
        for name, path in (("metrics", "/metrics"), ("html", "/"), ("status", "/api/ask/status"),
                           ("listen", "/api/listen")):
            answers["asked/" + name] = get(port, path, user, password)
    return answers


def get(port, path, user, password):
    """The answer: its status, and behind a line's end its body; NONE when the connection was shut."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status == 401:
            challenge = urllib.request.parse_keqv_list(urllib.request.parse_http_list(
                answer.headers["WWW-Authenticate"].partition(" ")[2]))
            answer.read()
            connection.request("GET", path, headers={"Authorization": proof(challenge, path, user, password)})
            answer = connection.getresponse()
        body = until_status(answer) if answer.status == 200 and path.endswith("listen") else answer.read()
        return b"%d\n%s" % (answer.status, body)
    except TimeoutError:
        return b"hang"
    except (OSError, http.client.HTTPException):
        return NONE
    finally:
        connection.close()


def proof(challenge, path, user, password):
    """That the password is known (RFC 7616)."""
    def digest(*words):
        return hashlib.sha256(":".join(words).encode()).hexdigest()
    realm, nonce = challenge["realm"], challenge["nonce"]
    response = digest(digest(user, realm, password), nonce, "00000001", "c", "auth", digest("GET", path))
    return ('Digest username="%s", realm="%s", nonce="%s", uri="%s", algorithm=SHA-256, qop=auth, nc=00000001, '
            'cnonce="c", response="%s"' % (user, realm, nonce, path, response))


def until_status(answer):
    """The events of a stream, to the end of the status, which is told last."""
    events = b""
    while not re.search(rb"^event: status\ndata: .*\n\n", events, re.MULTILINE):
        line = answer.readline()
        if not line:
            raise http.client.IncompleteRead(events)
        events += line
    return events


def parts(name, answer):
    """What an answer holds, by names: it may hold more than another, and other numbers."""
    status, _, body = answer.partition(b"\n")
    body = body.decode(errors="replace")
    if name == "asked/metrics":
        return {status, *re.findall(r"^(rollcall_\w+)", body, re.MULTILINE)}
    if name == "asked/listen":
        events = re.findall(r"^event: (\w+)\ndata: (.*)\n\n", body, re.MULTILINE)
        return {status}.union(*(members(json.loads(data), event) for event, data in events))
    if name == "asked/status":
        return {status, *members(json.loads(body))}
    return {status, body} if name == "asked/html" else {status}


def members(value, at=""):
    """The paths of all members inside of a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {at}.union(*(members(inner, "%s.%s" % (at, name)) for name, inner in inside))


def judge(clean, files, said):
    """None, or what is wrong with the answers. said: whether the daemon complained of something."""
    for name, whole in clean.items():
        answer = files.get(name, NONE)
        if answer == b"hang":
            return "%s is not answered" % name
        status = answer.partition(b"\n")[0]
        if answer == NONE or name == "asked/page" and status == b"3":
            continue
        if not status.isdigit() or name != "asked/page" and not 200 <= int(status) < 600:
            return "%s: %.200r" % (name, answer)
        if status not in (b"0", b"200"):
            continue
        try:
            lacks = parts(name, whole) - parts(name, answer)
        except ValueError as error:
            return "%s is no JSON: %s" % (name, error)
        if lacks and not said:
            return "%s has holes: %.300r" % (name, sorted(map(str, lacks)))
    return None
