"""plan.py: what a grouped product moves and computes, by exact arithmetic from its tiles; and how long that takes at
least.

The one model of the products' traffic. Its bytes are what the kernels' copies ask for: the boxes of each stage, cut off
where the group ends, each counted once where a team shares it. tests/gpu/count_boxes.c plays the copies one by one with
the kernels' own index functions, and test_kernel_report.py holds the two against each other.

Each level gives a least time; the largest of them is the roofline's time, and useful flop over it the ceiling. Of the
L2 only reads count: stores go the other way. DRAM is counted without luck: what the places that run at once need is
read once, and nothing is left of it for the next ones. Of shared memory, copies that arrive and reads of the matrix
unit are taken to use the same 128 bytes a clock.
"""
from collections import namedtuple

import device as devices

FORWARD, DGRAD, WGRAD = "forward", "dgrad", "wgrad"

# a: bytes of an element of the left operand; b: of the right one as it is copied; fp8: both are FP8; widens: the right
# operand is widened in shared memory.
Path = namedtuple("Path", "rows cols a b fp8 widens")
PATHS = {
    "wgmma": Path(128, 256, 2, 2, False, False),
    "wgmma, FP8 weights": Path(128, 128, 2, 1, False, True),
    "wgmma, FP8 by FP8": Path(128, 128, 1, 1, True, False),
}
LINE = 128  # bytes of depth of a stage of the left operand
BAND, TEAM_BAND = 8, 16  # tile rows
OUT = 2  # bytes of an element of a product; of a weight gradient 4
HALF = 64  # rows of one warpgroup

Problem = namedtuple("Problem", "kind counts n k")
Grid = namedtuple("Grid", "rows cols depth high wide team_high team_wide")


def ceil(a, b):
    return -(-a // b)


def shape_of(kind, m, n, k):
    return {FORWARD: (m, n, k), DGRAD: (m, k, n), WGRAD: (n, k, m)}[kind]


def grid_of(path, kind, m, n, k, team_log):
    """A group's places; None when it has none. The team stands where it needs the fewest places, then bytes."""
    rows, cols, depth = shape_of(kind, m, n, k)
    if m == 0 and kind != WGRAD:
        return None
    high, wide = ceil(rows, path.rows), ceil(cols, path.cols)
    a_bytes, b_bytes = path.rows * LINE, path.cols * LINE * path.b // path.a
    ways = [(1 << log, 1 << (team_log - log)) for log in range(team_log + 1)]
    best = min(ways, key=lambda w: (ceil(high, w[0]) * ceil(wide, w[1]), w[0] * a_bytes + w[1] * b_bytes, w[0]))
    return Grid(rows, cols, depth, ceil(high, best[0]), ceil(wide, best[1]), *best)


def raster(at, high, wide, band):
    """Place number `at`: bands of rows, down each column of a band before the next one."""
    first = at // (band * wide) * band
    height = min(band, high - first)
    inside = at - first * wide
    return first + inside % height, inside // height


class Traffic:
    """All that is counted of a problem."""

    def __init__(self, path_name, problem, team_log, sms=132, teams=None):
        self.path, self.problem, self.team_log = PATHS[path_name], problem, team_log
        self.teams = teams if teams is not None else sms >> team_log
        p = self.path
        self.step = LINE // p.a  # elements of depth of a stage
        self.flop = 2 * sum(problem.counts) * problem.n * problem.k
        self.l2_bytes = self.out_bytes = self.places = self.dram_least = 0
        self.stage_bytes = p.rows * LINE + p.cols * LINE * p.b // p.a
        grids = [grid_of(p, problem.kind, m, problem.n, problem.k, team_log) for m in problem.counts]
        self.grids = [g for g in grids if g is not None]
        band = TEAM_BAND if team_log else BAND
        out = 4 if problem.kind == WGRAD else OUT
        stages = [0] * self.teams  # what each team has to do
        wave, self.dram_bytes = {}, 0
        for number, g in enumerate(self.grids):
            # Each row of A is copied once for each column of teams, each column of B once for each row of them.
            self.l2_bytes += g.depth * (p.a * g.rows * g.wide + p.b * g.cols * g.high)
            self.dram_least += g.depth * (p.a * g.rows + p.b * g.cols)
            self.out_bytes += g.rows * g.cols * out
            for at in range(g.high * g.wide):
                team = self.places % self.teams
                if team == 0:
                    self._end(wave)
                row, col = raster(at, g.high, g.wide, max(1, band // g.team_high))
                rows, cols = wave.setdefault(number, (set(), set()))
                rows.add(row)
                cols.add(col)
                stages[team] += ceil(g.depth, self.step)
                self.places += 1
        self._end(wave)
        self.longest = max(stages, default=0)
        self.busy = sum(stages) / (len(stages) * self.longest) if self.longest else 0.0

    def _end(self, wave):
        p = self.path
        for number, (rows, cols) in wave.items():
            g = self.grids[number]
            tall, broad = p.rows * g.team_high, p.cols * g.team_wide
            self.dram_bytes += g.depth * (p.a * sum(min(tall, g.rows - r * tall) for r in rows) +
                                          p.b * sum(min(broad, g.cols - c * broad) for c in cols))
        wave.clear()

    def shared_per_stage(self):
        """Bytes of one block's shared memory for one stage: copies, what the matrix unit reads, widening."""
        p = self.path
        wide = p.cols * LINE  # the right operand as the matrix unit reads it
        both = 2 * (HALF * LINE + wide)
        return self.stage_bytes + both + (self.stage_bytes - p.rows * LINE + wide if p.widens else 0)

    def block_flop(self):
        """Of one stage of one block, whether its rows exist or not."""
        return 2 * self.path.rows * self.path.cols * self.step

    def times(self, device, l2_bytes_per_s=None):
        """{level: least seconds}."""
        d = {name: fact.value for name, fact in devices.DEVICES[device].items()}
        peak = d["fp8_flop_per_s" if self.path.fp8 else "bf16_flop_per_s"] / d["multiprocessors"]
        return {
            "tensor": self.longest * self.block_flop() / peak,
            "shared": self.longest * self.shared_per_stage() / (d["shared_bytes_per_clock"] * devices.clock(device)),
            "L2": self.l2_bytes / (l2_bytes_per_s or d["l2_bytes_per_s"]),
            "DRAM": (self.dram_bytes + self.out_bytes) / d["dram_bytes_per_s"],
        }

    def ceiling(self, device, l2_bytes_per_s=None):
        """(flop/s, the level that sets it)."""
        times = self.times(device, l2_bytes_per_s)
        level = max(times, key=times.get)
        return (self.flop / times[level] if times[level] else 0.0), level

    def l2_asked(self, flop_per_s):
        """Bytes a second that the L2 must give for this speed."""
        return self.l2_bytes * flop_per_s / self.flop if self.flop else 0.0


def traffic(path_name, problem, team_log, device):
    return Traffic(path_name, problem, team_log, teams=devices.DEVICES[device]["teams"].value[team_log])
