"""tree.py: the binaries that the checks use, as one folder: bin/rollcall, bin/rollcalld, lib/librollcall.so, tests/*.

On a GPU machine daemon and console come from the bundle and the rest is built there; with --stand-in all come from a
build tree.
"""
import os
import shutil
import subprocess

import place


class Tree:
    def __init__(self, root, tests, libraries, bench, stand_in):
        self.rollcall = os.path.join(root, "bin", "rollcall")
        self.preload = os.path.join(root, "lib", "librollcall.so")
        self.tests, self.libraries, self.bench, self.stand_in = tests, libraries, bench, stand_in

    def program(self, name):
        """The path of a check program."""
        path = os.path.join(self.tests, name)
        if not os.path.exists(path):
            raise RuntimeError(f"{name} was not built (see "
                               f"{os.path.join(os.path.dirname(self.tests), 'gpu-check.log')})")
        return path


def stand_in(build):
    """A finished build tree, on hostnccl and hostcuda."""
    hostnccl = os.path.join(build, "lib", "hostnccl")
    for path in (os.path.join(build, "bin", "rollcall"), os.path.join(hostnccl, "libnccl.so.2")):
        if not os.path.exists(path):
            raise place.Missing(f"{path} is not there: build the tree first, or name it with --build")
    return Tree(build, os.path.join(build, "tests"), hostnccl, os.path.join(build, "bin", "roll_bench_rank"), True)


def run(argv, log):
    with open(log, "ab") as f:
        f.write((" ".join(argv) + "\n").encode())
        f.flush()
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT).returncode == 0


def last_lines(log, n=15):
    """The end of a log: on a borrowed machine nobody can look into the file afterwards."""
    with open(log, errors="replace") as f:
        return "\n".join("  " + line.rstrip() for line in f.readlines()[-n:])


def configure(build, vendor, compute, log, *more):
    """Configures the tree: as it is, anew, and at last without CUDA's compiler, for without a usable one all but the
    kernels can be checked. Returns cmake, and whether the kernels are in."""
    cmake = place.tool("cmake")
    if not cmake:
        raise place.Missing("cmake (3.25 or newer) is neither in PATH nor beside this Python")
    major, minor = compute.split(".")
    architecture = f"{major}{minor}a" if int(major) >= 9 else f"{major}{minor}"
    # Warnings are no errors: nobody here has seen the compiler.
    argv = [cmake, "-S", place.ROOT, "-B", build, "-DROLL_RANK_ONLY=ON", "-DROLL_WERROR=OFF",
            f"-DROLL_VENDOR_NCCL_INCLUDE={vendor.nccl_include}", f"-DROLL_VENDOR_CUDA_INCLUDE={vendor.cuda_include}",
            f"-DROLL_NCCL_LIBRARY={vendor.nccl}", f"-DROLL_CUDART_LIBRARY={vendor.cudart}", *more]
    if vendor.cublas:
        lt = vendor.cublas.replace("libcublas.so", "libcublasLt.so")
        argv += [f"-DROLL_CUBLAS_LIBRARY={vendor.cublas}", f"-DROLL_CUBLASLT_LIBRARY={lt}"]
    ninja = place.tool("ninja")
    argv += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    with_cuda = ["-DROLL_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={vendor.nvcc}", f"-DCMAKE_CUDA_ARCHITECTURES={architecture}"]
    if vendor.nvcc:
        if run(argv + with_cuda, log):
            return cmake, True
        forget(build)
        if run(argv + with_cuda, log):
            return cmake, True
        print(f"gpu-check: {vendor.nvcc} does not work for sm_{architecture}, the end of {log}:\n{last_lines(log)}",
              flush=True)
    forget(build)
    if not run(argv + ["-DROLL_CUDA=OFF"], log):
        raise place.Missing(f"configuring failed, the end of {log}:\n{last_lines(log)}")
    return cmake, False


def forget(build):
    """What an earlier configuration remembers: another generator or compiler, or a compiler that failed, would stay for
    good."""
    shutil.rmtree(os.path.join(build, "CMakeFiles"), ignore_errors=True)
    for name in ("CMakeCache.txt", "build.ninja", "Makefile"):
        if os.path.exists(os.path.join(build, name)):
            os.remove(os.path.join(build, name))


def preload(build, log):
    """The library for the ranks: the one built here; the bundle's, which runs on any glibc since 2.28, where that
    failed."""
    for path in (os.path.join(build, "lib", "librollcall.so"), os.path.join(place.BUNDLE, "lib", "librollcall.so")):
        if os.path.exists(path):
            return path
    raise place.Missing(f"librollcall.so was not built, the end of {log}:\n{last_lines(log)}")


def built(vendor, compute, build=None):
    """Builds what runs inside a rank against the vendor's libraries, and puts the bundle's daemon and console beside
    it."""
    if not os.path.exists(os.path.join(place.BUNDLE, "bin", "rollcall")):
        raise place.Missing(f"{place.BUNDLE} is not there: on the development machine run scripts/gpu-check --bundle, "
                            "then copy the folder bundle/ along with the sources")
    build = build or os.path.join(place.ROOT, "build-gpu")
    os.makedirs(build, exist_ok=True)
    log = os.path.join(build, "gpu-check.log")
    cmake, cuda = configure(build, vendor, compute, log)
    if not cuda:
        print("gpu-check: no usable CUDA compiler: the kernels cannot be checked", flush=True)
    ninja = os.path.exists(os.path.join(build, "build.ninja"))
    if not run([cmake, "--build", build, "--parallel", str(os.cpu_count()), "--", *(["-k", "0"] if ninja else ["-k"])],
               log):
        print("gpu-check: not everything could be built, the parts that need it will say so; the end of "
              f"{log}:\n{last_lines(log)}", flush=True)
    tree = os.path.join(build, "tree")
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(place.BUNDLE, tree, symlinks=True)
    built_here = preload(build, log)
    if not built_here.startswith(place.BUNDLE):
        shutil.copy2(built_here, os.path.join(tree, "lib"))
    return Tree(tree, os.path.join(build, "tests"), vendor.library_path(),
                os.path.join(build, "bin", "roll_bench_rank"), False)
