"""program_library.py: what program_folds.py uses, and the rule of the test calls a library."""


def inner(call):
    call()


def outer(call):
    inner(call)


def calls_back(user):
    outer(user)


def run_backward(call):
    call()


def backward(call):
    run_backward(call)
