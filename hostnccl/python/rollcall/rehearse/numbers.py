"""numbers.py: the seeded numbers of --values random. Needs no PyTorch for the key; filling takes a host tensor.

The numbers depend on the seed, on the line of the job that wants them and on how often it wanted some before, so that
ranks which differ elsewhere still agree there. Floats are in [0, 1), integers are 0 to 15, because a job makes
buffers of them, and a bool is one or the other."""
import hashlib

INTEGERS = 16

_times = {}  # site -> fills so far


def key(seed, is_same, rank, site, times):
    """A seed of 63 bits."""
    file, line, function = site
    name = file.rsplit("/", 1)[-1]
    text = f"{seed}|{name}|{line}|{function}|{times}|{0 if is_same or rank is None else rank + 1}"
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little") >> 1


def fill(torch, host, seed, is_same, rank, site):
    """Fills a host tensor."""
    times = _times.get(site, 0)
    _times[site] = times + 1
    generator = torch.Generator()
    generator.manual_seed(key(seed, is_same, rank, site, times))
    if host.dtype.is_complex:
        torch.view_as_real(host).copy_(torch.rand(*host.shape, 2, generator=generator))
    elif host.dtype.is_floating_point:
        host.copy_(torch.rand(host.shape, generator=generator))
    else:
        most = 2 if host.dtype == torch.bool else INTEGERS
        host.copy_(torch.randint(0, most, host.shape, generator=generator))
