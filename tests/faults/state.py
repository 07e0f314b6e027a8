"""state.py: the page that fail_nth.so shares with its driver (fail_nth.h)."""
import struct

SITES = 4096
HEAD = struct.Struct("<QQIIII4QQQiI32s64s")
SITE = struct.Struct("<QQ")
BYTES = HEAD.size + SITES * SITE.size
KINDS = {"alloc": 1, "call": 2}


class State:
    """One run: what shall fail in it, and, afterwards, what did."""

    def __init__(self, path, kind="alloc", nth=0, site=0, variant=0, onwards=False):
        self.path, self.kind = path, kind
        with open(path, "wb") as file:
            head = HEAD.pack(nth, site, KINDS[kind], variant, onwards, 0, *[0] * 6, 0, 0, b"", b"")
            file.write(head + bytes(BYTES - HEAD.size))

    def read(self):
        with open(self.path, "rb") as file:
            data = file.read()
        fields = HEAD.unpack_from(data)
        seen, self.failed, self.offset, self.error, self.variants = fields[6:10], *fields[10:14]
        self.seen = seen[KINDS[self.kind]]
        self.function, self.object = (text.rstrip(b"\0").decode() for text in fields[14:16])
        self.sites = {}
        for i in range(SITES):
            key, count = SITE.unpack_from(data, HEAD.size + i * SITE.size)
            if key:
                self.sites[key] = count
        return self

    def fault(self):
        """What failed, for people: `malloc: ENOMEM at 0x1234`."""
        if not self.failed:
            return "nothing"
        error = "a part" if self.error < 0 else errno_name(self.error)
        return "%s: %s at %s+%#x" % (self.function, error, self.object, self.offset)


def errno_name(number):
    import errno
    return errno.errorcode.get(number, str(number))


def is_call(key):
    """Whether this site calls the system; the others allocate (the first four numbers of fail_nth.c)."""
    return (key >> 40) & 0xffff > 4
