"""settings.py: what the environment says, which `rollcall rehearse` sets: ROLLCALL_REHEARSE_COMPUTE (a size, or off),
ROLLCALL_REHEARSE_VALUES and ROLLCALL_REHEARSE_STEPS. Needs no PyTorch. A value that cannot be read is told in one line,
and the default is used: the console has refused it before, so somebody has set the variable by hand."""
import os
import re
import sys

DEFAULT_BYTES = 64 * 1024


class Settings:
    def __init__(self):
        self.bytes = DEFAULT_BYTES  # None: PyTorch is left alone
        self.seed = None            # None: what was not computed stays as it is
        self.is_same = True         # the same random numbers on all ranks
        self.steps = 0              # 0: the job ends by itself


def read_size(text):
    """Bytes; None for "off". ValueError otherwise."""
    if text == "off":
        return None
    m = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text)
    if not m:
        raise ValueError("wants a size, like 64K, or off")
    return int(m[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[m[2]]


def read_values(text):
    """(seed or None, the same on all ranks). ValueError otherwise."""
    if text == "zero":
        return None, True
    m = re.fullmatch(r"random:(\d+)(,same|,different)?", text)
    if not m:
        raise ValueError("wants zero or random:SEED[,same|,different]")
    return int(m[1]), m[2] != ",different"


def read_steps(text):
    if not re.fullmatch(r"\d+", text):
        raise ValueError("wants a number")
    return int(text)


def complain(text):
    print(f"rollcall: {text}", file=sys.stderr, flush=True)


def _from(environment, name, read, default):
    text = environment.get(name, "")
    if not text:
        return default
    try:
        return read(text)
    except ValueError as why:
        complain(f"{name}={text}: {why}; the default is used")
        return default


def from_environment(environment=os.environ):
    s = Settings()
    s.bytes = _from(environment, "ROLLCALL_REHEARSE_COMPUTE", read_size, s.bytes)
    s.seed, s.is_same = _from(environment, "ROLLCALL_REHEARSE_VALUES", read_values, (s.seed, s.is_same))
    s.steps = _from(environment, "ROLLCALL_REHEARSE_STEPS", read_steps, s.steps)
    return s


now = from_environment()


def change(size=None, values=None, steps=None):
    if size is not None:
        now.bytes = int(size)
    if values is not None:
        now.seed, now.is_same = read_values(values)
    if steps is not None:
        now.steps = int(steps)


def is_off():
    return os.environ.get("ROLLCALL_REHEARSE") == "0"


def rank():
    text = os.environ.get("RANK", "")
    return int(text) if text.isdigit() else None
