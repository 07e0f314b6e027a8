"""prototypes.txt, read: for each function its library, what it returns, and its parameters as (kind, name).

Kinds are how an argument travels: pointer, int (enumerations too), long (64 bits), bool, float, double, window (a
struct by value).
"""
import collections
import re

Function = collections.namedtuple("Function", "name library returns parameters")

LONG = {"size_t", "int64_t", "long long", "long long int", "uint64_t"}
HANDLE = re.compile(
    r"^(void\s*\*|NVTE(Grouped)?Tensor|NVTE(Grouped)?MatmulConfig|cudaStream_t|cublasHandle_t|cublasLt\w+_t)$")


def kind_of(declared):
    """The kind of a declared type, without the parameter's name."""
    text = " ".join(declared.replace("const", " ").split())
    if "*" in text or "[" in text or HANDLE.match(text):
        return "pointer"
    if text in LONG:
        return "long"
    if text in ("bool", "float", "double", "window"):
        return text
    return "window" if text == "NVTECommWindow" else "int"


def parameters_of(text):
    """The parameters of "(int a, void *b)" without its brackets."""
    text = " ".join(text.split())
    out = []
    for one in text.split(",") if text not in ("", "void") else []:
        one = one.split("=")[0].strip()
        match = re.match(r"^(.*?)(\w+)\s*(\[\s*\d*\s*\])?$", one)
        out.append((kind_of(match.group(1) + (match.group(3) or "")), match.group(2)))
    return out


def read(path):
    functions, library = [], None
    for line in open(path):
        match = re.match(r"^LIB (\w+)$", line)
        if match:
            library = match.group(1)
        match = re.match(r"^(void|int) (\w+)\((.*)\);$", line)
        if match:
            functions.append(Function(match.group(2), library, match.group(1), parameters_of(match.group(3))))
    return functions
