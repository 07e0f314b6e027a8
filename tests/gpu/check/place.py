"""place.py: what this machine has: GPU, NCCL, CUDA runtime, PyTorch, compiler; and the tree that the checks are run
from.

Nothing is installed and no network is used. The vendor's NCCL is taken from the wheel that PyTorch brings, headers
included, so that the checks and PyTorch run on the same library; /usr/local/cuda and the loader's own paths come after.
"""
import ctypes
import faulthandler
import glob
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
BUNDLE = os.path.join(ROOT, "bundle")


DRIVER_S = 120
COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE; 0: several processes may have contexts


class Missing(Exception):
    """Something that the checks cannot do without; the text says what, and what to do."""


def output(*argv, seconds=60):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_gpu():
    """The first GPU as {name, count, compute, driver}; None where the driver finds none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, version, device = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    faulthandler.dump_traceback_later(DRIVER_S, exit=True)  # a driver that hangs says nothing by itself
    none = driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0
    faulthandler.cancel_dump_traceback_later()
    if none:
        return None
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGet(ctypes.byref(device), 0)
    name, major, minor = ctypes.create_string_buffer(128), ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    mode = ctypes.c_int(0)
    if driver.cuDeviceGetAttribute(ctypes.byref(mode), COMPUTE_MODE, device) == 0 and mode.value != 0:
        raise Missing("the GPU is in exclusive or prohibited mode, so ranks cannot share it: nvidia-smi -c DEFAULT "
                      "allows them to")
    return {"name": name.value.decode(), "count": count.value, "compute": f"{major.value}.{minor.value}",
            "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}"}


def wheel_folders():
    """Folders of NVIDIA's wheels beside the running Python, any layout (nvidia/nccl, nvidia/cu13, ...)."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations) if spec and spec.submodule_search_locations else []
    return [folder for root in roots for folder in sorted(glob.glob(os.path.join(root, "*"))) if os.path.isdir(folder)]


CUDA_HOMES = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]


def first(paths):
    return next((p for p in paths if p and os.path.exists(p)), None)


def tool(name):
    """A program of the PATH, or one that came with this Python (cmake and ninja do, as wheels); None where there is
    none."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    return shutil.which(name) or (beside if os.access(beside, os.X_OK) else None)


class Vendor:
    """Where NCCL's and CUDA's headers and libraries are."""

    def __init__(self):
        wheels = wheel_folders()
        homes = [h for h in CUDA_HOMES if h]
        self.nccl_include = self._folder([os.path.join(d, "include", "nccl.h") for d in wheels + homes + ["/usr"]],
                                         "nccl.h", "NCCL's header")
        self.nccl = self._file([os.path.join(d, "lib", "libnccl.so.2") for d in wheels + homes] +
                               ["/usr/lib/x86_64-linux-gnu/libnccl.so.2"], "libnccl.so.2", "NCCL itself")
        self.cuda_include = self._folder([os.path.join(d, "include", "cuda_runtime.h") for d in homes + wheels],
                                         "cuda_runtime.h", "CUDA's header")
        libraries = [os.path.join(d, sub, f"libcudart.so.{n}") for n in (13, 12) for d in wheels + homes
                     for sub in ("lib", "lib64")]
        self.cudart = self._file(libraries, "libcudart.so", "the CUDA runtime")
        self.cublas = first([os.path.join(d, sub, f"libcublas.so.{n}") for n in (13, 12) for d in wheels + homes
                             for sub in ("lib", "lib64")])
        # None: all but the kernels can be checked
        self.nvcc = first([os.path.join(d, "bin", "nvcc") for d in homes + wheels]) or tool("nvcc")

    @staticmethod
    def _file(candidates, name, what):
        found = first(candidates)
        if not found:
            raise Missing(f"{name} ({what}) was not found beside this Python ({sys.executable}) nor in "
                          "/usr/local/cuda: run gpu-check with the Python that holds PyTorch")
        return found

    def _folder(self, candidates, name, what):
        return os.path.dirname(self._file(candidates, name, what))

    def library_path(self):
        return ":".join(dict.fromkeys(os.path.dirname(p) for p in (self.nccl, self.cudart, self.cublas) if p))


def nccl_version(path):
    try:
        version = ctypes.c_int(0)
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    v = version.value
    return f"{v // 10000}.{v % 10000 // 100}.{v % 100}"


def torch_version():
    """PyTorch's version and whether it has NCCL, asked in a process of its own; None without PyTorch."""
    text = output(sys.executable, "-c", "import json, torch, torch.distributed as d\n"
                  "print(json.dumps([torch.__version__, d.is_nccl_available() and torch.cuda.is_available()]))")
    return json.loads(text) if text else None


def machine(gpu, nccl_path):
    """What a reader of the results has to know, besides the figures."""
    with open("/proc/cpuinfo") as f:
        cpu = re.search(r"model name\s*: (.*)", f.read())
    torch = torch_version()
    return {"gpu": gpu, "driver": output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0")
            or None, "nccl": nccl_version(nccl_path), "torch": torch[0] if torch else None,
            "python": platform.python_version(), "glibc": platform.libc_ver()[1], "kernel": platform.release(),
            "cpu": cpu.group(1) if cpu else None, "cpus": os.cpu_count()}


def revision():
    text = output("git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12")
    return text or None
