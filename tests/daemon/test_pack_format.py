"""test_pack_format.py GOLDEN PLAIN: packed frames, read by docs/FRAME.md alone.

A second reader, in another language, written from the document and not from the code: what it makes of the golden file
is compared with the plain frames that were packed. So the document says enough, and stays true. Needs libzstd (the
daemon links it).
"""
import ctypes
import struct
import sys

MASK = 2**64 - 1
HEAD = struct.Struct("<4sBBHIHHIIQQQII")
RECORD = struct.Struct("<QQQIIiIIHHHHHHBBBBBBH")
SIGNATURE = struct.Struct("<iHHHHHHBBBBB3x")
RECORDS, UPDATES, STATUS, TICK, PACK = 5, 6, 7, 15, 19
LIST = 65536


class Buffer(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t)]


class Zstd:
    """One stream through all PACKs."""

    def __init__(self):
        self.lib = ctypes.CDLL("libzstd.so.1")
        self.lib.ZSTD_createDStream.restype = ctypes.c_void_p
        self.lib.ZSTD_decompressStream.restype = ctypes.c_size_t
        self.lib.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, ctypes.POINTER(Buffer), ctypes.POINTER(Buffer)]
        self.stream = self.lib.ZSTD_createDStream()

    def expand(self, data, size):
        room, source = ctypes.create_string_buffer(size), ctypes.create_string_buffer(data, len(data))
        out = Buffer(ctypes.cast(room, ctypes.c_void_p), size, 0)
        into = Buffer(ctypes.cast(source, ctypes.c_void_p), len(data), 0)
        while into.pos < into.size:
            assert not self.lib.ZSTD_isError(ctypes.c_size_t(self.lib.ZSTD_decompressStream(self.stream, out, into)))
        assert out.pos == size
        return room.raw


class Columns:
    def __init__(self, data):
        length = struct.unpack_from("<9I", data)
        self.data, self.at, start = [], [0] * 9, 36
        for n in length:
            self.data.append(data[start:start + n])
            start += n
        assert start == len(data)
        self.bit = 0

    def bytes(self, column, n):
        at = self.at[column]
        self.at[column] += n
        assert self.at[column] <= len(self.data[column])
        return self.data[column][at:at + n]

    def number(self, column, predicted):
        f = self.bytes(column, 1)[0]
        if f >= 2:
            n, b = f // 2 + 1, f & 1
            f = (2 | b) << (n - 2)
            for i in range(n - 2):
                f |= (self.data[7][self.bit >> 3] >> (self.bit & 7) & 1) << i
                self.bit += 1
        return (predicted + (-(f + 1) // 2 if f & 1 else f // 2)) & MASK

    def used_up(self):
        self.at[7] = (self.bit + 7) // 8
        return all(at == len(d) for at, d in zip(self.at, self.data))


def mix(h, v):
    x = (h ^ v) * 0x9E3779B97F4A7C15 & MASK
    return x ^ x >> 29


def line(h):
    return (h >> 32) % 65536


class Place:
    def __init__(self):
        self.count = self.aux = self.gap = self.call = self.seq_step = self.group_step = self.step_step = 0
        self.seen = False

    def drift(self, x, v):
        off = (v - x) & MASK
        off -= 2**64 if off >> 63 else 0
        quarter = abs(off) // 4
        return (x + (quarter if off >= 0 else -quarter)) & MASK if self.seen else v & MASK


class Ring:
    def __init__(self, epoch):
        self.epoch, self.seq, self.next_ticket, self.history = epoch, 0, 0, [0, 0, 0]
        self.group = self.step = self.enter = self.call = self.place = 0
        self.status, self.status_real, self.entered = bytes(176), 0, []


class Record:
    """The fields in the order of docs/RING.md; the signature is all that is neither time, counter nor state."""
    NAMES = ("seal enter_ns count seq group peer call_ns step comm stream callsite thread layer microbatch op dtype "
             "redop flags phase result aux").split()
    SIGNED = "peer comm stream callsite thread layer microbatch op dtype redop flags phase".split()

    def __init__(self, raw=bytes(64)):
        for name, value in zip(self.NAMES, RECORD.unpack(raw)):
            setattr(self, name, value)

    def sign(self, signature):
        for name, value in zip(self.SIGNED, SIGNATURE.unpack(signature)):
            setattr(self, name, value)

    def pack(self):
        return RECORD.pack(*(getattr(self, name) for name in self.NAMES))

    @property
    def ticket(self):
        return (self.seal >> 8) - 1

    @property
    def state(self):
        return self.seal & 255


class Reader:
    def __init__(self):
        self.zstd, self.rings, self.last, self.seq = Zstd(), [], 0, 0
        self.tick = [0, 0]
        self.signatures, self.place, self.next, self.counter = [], {}, {}, {}

    def ring(self, c):
        guess = self.last + 1 if self.last + 1 < len(self.rings) else 0
        self.last = c.number(1, guess)
        if self.last == len(self.rings):
            self.rings.append(Ring(struct.unpack("<Q", c.bytes(8, 8))[0]))
        return self.rings[self.last]

    def sequence(self, c, ring):
        near = self.seq if (self.seq - ring.seq) & MASK < 1024 else ring.seq
        self.seq = ring.seq = c.number(1, near + 1)
        return self.seq

    def place_of(self, ring, s):
        h = ring.epoch
        for v in (*ring.history, s):
            h = mix(h, v)
        return line(h)

    def signature(self, c, miss, following):
        if not miss & 1:
            s = self.next[following]
            return s, self.signatures[s]
        s = c.number(3, 0)
        if s < len(self.signatures):
            return s, self.signatures[s]
        raw = c.bytes(8, 24)
        if raw not in self.signatures and len(self.signatures) < LIST:
            self.signatures.append(raw)
            return s, raw
        return LIST, raw

    def record(self, c, ring, ticket):
        r, miss = Record(), c.bytes(2, 1)[0]
        following = self.place_of(ring, MASK)
        s, raw = self.signature(c, miss, following)
        r.sign(raw)
        at = self.place_of(ring, s)
        p = self.place.setdefault(at, Place())
        key = line(mix(mix(ring.epoch, r.comm), 0 if r.peer < 0 else r.op << 32 | r.peer))
        last = self.counter.get(key, 0)
        low = 2**32 - 1
        for name, bit, value in (("count", 2, p.count), ("seq", 4, last + p.seq_step & low),
                                 ("group", 8, ring.group + p.group_step & low),
                                 ("step", 16, ring.step + p.step_step & low), ("aux", 32, p.aux)):
            setattr(r, name, c.number(3, value) if miss & bit else value)
        state = c.number(3, 1) if miss & 64 else 2
        r.result = c.number(3, 0) if miss & 64 else 0
        r.seal = ticket + 1 << 8 | state
        waits = ring.entered[-1] if ring.entered and ring.entered[-1]["record"].ticket == ring.next_ticket - 1 else None
        before = self.place.setdefault(ring.place, Place()).call if waits else ring.call
        r.enter_ns = c.number(4, ring.enter + before + p.gap)
        passed = (r.enter_ns - ring.enter) & MASK
        if waits:
            bound = (passed - p.gap) & MASK
            waits["bound"] = 0 if bound >> 63 else bound
        else:
            p.gap = p.drift(p.gap, passed - before)
        r.call_ns = c.number(5, 0 if state == 1 else p.call)
        if state != 1:
            p.call = p.drift(p.call, r.call_ns)
        p.count, p.aux, p.seq_step = r.count, r.aux, r.seq - last & MASK
        p.group_step, p.step_step, p.seen = r.group - ring.group & MASK, r.step - ring.step & MASK, p.seen or state != 1
        self.counter[key], self.next[following] = r.seq, s
        ring.place, ring.next_ticket, ring.group = at, ticket + 1, r.group
        ring.step, ring.enter, ring.call = r.step, r.enter_ns, r.call_ns
        ring.history = [s, *ring.history[:2]]
        if state == 1:
            ring.entered = [*ring.entered[-63:], {"record": r, "place": at, "bound": 0}]
        return r

    def update(self, c, ring):
        miss = c.bytes(2, 1)[0]
        if miss & 4:
            r = Record(c.bytes(8, 64))
            i = next((k for k, e in enumerate(ring.entered) if e["record"].ticket == r.ticket), None)
        else:
            i = c.number(3, 0) if miss & 1 else 0
            e = ring.entered[i]
            r, p = Record(e["record"].pack()), self.place.setdefault(e["place"], Place())
            state = c.number(3, 1) if miss & 2 else 2
            r.result = c.number(3, 0) if miss & 2 else 0
            r.seal = r.seal & ~255 | state
            r.call_ns = c.number(5, e["bound"] or p.call)
            if state != 1:
                p.call = p.drift(p.call, r.call_ns)
            p.seen = True
        if i is not None:
            if i == len(ring.entered) - 1 and r.ticket == ring.next_ticket - 1:
                ring.call = r.call_ns
            del ring.entered[i]
        return r

    def frame(self, c):
        """(type, seq, stream, first, count, payload)"""
        kind = c.bytes(0, 1)[0]
        if kind == 0:
            return plain(c.bytes(8, c.number(1, 0)))[0]
        if kind in (4, 5):
            grain = 100000 if kind == 5 else 1
            was = [v // grain for v in self.tick]
            seq = c.number(6, was[0])
            real = c.number(6, was[1] + seq - was[0] & MASK)
            first = c.number(6, 0)
            self.tick = [seq * grain, real * grain]
            return TICK, self.tick[0], 0, first, 0, struct.pack("<Q", self.tick[1])
        ring = self.ring(c)
        seq = self.sequence(c, ring)
        if kind == 6:
            return self.status(c, ring, seq)
        count = c.number(1, 1)
        if kind == 3:
            records = [self.update(c, ring) for _ in range(count)]
            return UPDATES, seq, ring.epoch, records[0].ticket, count, b"".join(r.pack() for r in records)
        first = ticket = c.number(1, ring.next_ticket)
        records = []
        for _ in range(count):
            ticket = c.number(1, ticket) if kind == 2 else ticket
            records.append(self.record(c, ring, ticket))
            ticket += 1
        return RECORDS, seq, ring.epoch, first, count, b"".join(r.pack() for r in records)

    def status(self, c, ring, seq):
        was_mono, was_real = struct.unpack_from("<QQ", ring.status, 16)
        mono = c.number(6, was_mono + self.tick[1] - ring.status_real & MASK)
        real = c.number(6, was_real + mono - was_mono & MASK)
        other = c.number(6, 0)
        same = struct.pack("<Q", ring.next_ticket) + ring.status[8:16] + struct.pack("<QQ", mono,
                                                                                     real) + ring.status[32:]
        ring.status, ring.status_real = c.bytes(8, 176) if other else same, self.tick[1]
        return STATUS, seq, ring.epoch, 0, 0, ring.status

    def pack(self, payload):
        frames, size = struct.unpack_from("<II", payload)
        c = Columns(self.zstd.expand(payload[8:], size))
        out = [self.frame(c) for _ in range(frames)]
        assert c.used_up()
        return out


def plain(data):
    """The frames that stand end to end in these bytes."""
    out, at = [], 0
    while at < len(data):
        magic, _, _, kind, _, length, _, count, payload, seq, stream, first, _, _ = HEAD.unpack_from(data, at)
        assert magic == b"RLFR"
        at += length
        out.append((kind, seq, stream, first, count, data[at:at + payload]))
        at += payload
    return out


def main():
    with open(sys.argv[1], "rb") as f:
        golden = f.read()
    with open(sys.argv[2], "rb") as f:
        want = plain(f.read())
    got, reader = [], Reader()
    for number, frame in enumerate(plain(golden[16:])):
        assert frame[0] == PACK and frame[1] == number
        got += reader.pack(frame[5])
    for i, (a, b) in enumerate(zip(got, want)):
        assert a == b, f"frame {i}: {a}\n!= {b}"
    assert len(got) == len(want) > 80, (len(got), len(want))
    kinds = {frame[0] for frame in got}
    assert {RECORDS, UPDATES, STATUS, TICK} <= kinds, kinds
    print(f"{len(got)} frames, {sum(frame[4] for frame in got)} records, as they were packed")


main()
