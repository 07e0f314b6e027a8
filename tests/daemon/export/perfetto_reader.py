"""perfetto_reader.py: a reader of Perfetto traces that shares nothing with the writer: protobuf from its bytes up, and
of Perfetto's messages only what a test asks. A field that is not known here is an error, so nothing is written unseen.
"""
import struct

VARINT, I64, BYTES = 0, 1, 2
# Message: {field: (name, message or wire type, repeated)}. Numbers of Perfetto's protos/perfetto/trace/.
CLOCK = {1: ("clock_id", VARINT, False), 2: ("timestamp", VARINT, False)}
SNAPSHOT = {1: ("clocks", CLOCK, True)}
PROCESS = {1: ("pid", VARINT, False), 6: ("process_name", BYTES, False)}
TRACK = {1: ("uuid", VARINT, False), 2: ("name", BYTES, False), 3: ("process", PROCESS, False),
         5: ("parent_uuid", VARINT, False), 14: ("description", BYTES, False)}
NOTE = {1: ("name_iid", VARINT, False), 2: ("bool_value", VARINT, False), 3: ("uint_value", VARINT, False),
        4: ("int_value", VARINT, False), 6: ("string_value", BYTES, False), 17: ("string_value_iid", VARINT, False)}
EVENT = {3: ("category_iids", VARINT, True), 4: ("debug_annotations", NOTE, True), 9: ("type", VARINT, False),
         10: ("name_iid", VARINT, False), 11: ("track_uuid", VARINT, False), 23: ("name", BYTES, False),
         47: ("flow_ids", I64, True)}
NAME = {1: ("iid", VARINT, False), 2: ("name", BYTES, False)}
INTERNED = {1: ("event_categories", NAME, True), 2: ("event_names", NAME, True),
            3: ("debug_annotation_names", NAME, True), 29: ("debug_annotation_string_values", NAME, True)}
PACKET = {6: ("clock_snapshot", SNAPSHOT, False), 8: ("timestamp", VARINT, False),
          10: ("trusted_packet_sequence_id", VARINT, False), 11: ("track_event", EVENT, False),
          12: ("interned_data", INTERNED, False), 13: ("sequence_flags", VARINT, False),
          60: ("track_descriptor", TRACK, False)}
BEGIN, END, INSTANT = 1, 2, 3


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7f) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def message(data, fields):
    out, at = {}, 0
    while at < len(data):
        tag, at = varint(data, at)
        name, kind, repeated = fields[tag >> 3]
        wire = tag & 7
        if wire == VARINT:
            assert kind == VARINT, name
            value, at = varint(data, at)
        elif wire == I64:
            assert kind == I64, name
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        else:
            assert wire == BYTES, wire
            n, at = varint(data, at)
            value, at = bytes(data[at:at + n]), at + n
            assert len(value) == n, "cut short"
            value = value.decode("utf-8") if kind == BYTES else message(value, kind)
        if repeated:
            out.setdefault(name, []).append(value)
        else:
            assert name not in out, name
            out[name] = value
    return out


def packets(path):
    with open(path, "rb") as f:
        data = f.read()
    at = 0
    while at < len(data):
        assert data[at] == 0x0a, (at, data[at])
        n, at = varint(data, at + 1)
        yield message(data[at:at + n], PACKET)
        at += n


class Trace:
    """tracks {uuid: descriptor}, events (dicts with time, track, type, name, category, flows, args) in file order, and
    slices: begins with their end, None where there is none."""

    def __init__(self, path):
        self.tracks, self.events, self.slices, self.clocks = {}, [], [], None
        names = {key: {} for key in ("event_categories", "event_names", "debug_annotation_names",
                                     "debug_annotation_string_values")}
        open_slices = {}
        for number, p in enumerate(packets(path)):
            assert p["trusted_packet_sequence_id"] == 1 and p["sequence_flags"] == (1 if number == 0 else 2), p
            for key, added in p.get("interned_data", {}).items():
                for one in added:
                    assert one["iid"] > 0 and one["iid"] not in names[key], one
                    names[key][one["iid"]] = one["name"]
            if "clock_snapshot" in p:
                self.clocks = p["clock_snapshot"]["clocks"]
            if "track_descriptor" in p:
                t = p["track_descriptor"]
                assert t["uuid"] not in self.tracks, t
                assert t.get("parent_uuid") is None or t["parent_uuid"] in self.tracks, t
                self.tracks[t["uuid"]] = t
            if "track_event" in p:
                e = p["track_event"]
                assert e["track_uuid"] in self.tracks, "a track is described before its first event"
                args = {}
                for a in e.get("debug_annotations", []):
                    value = [v for k, v in a.items() if k not in ("name_iid", "string_value_iid")]
                    value += [names["debug_annotation_string_values"][a["string_value_iid"]]
                              ] if "string_value_iid" in a else []
                    assert len(value) == 1, a
                    args[names["debug_annotation_names"][a["name_iid"]]] = value[0]
                event = {"time": p["timestamp"], "track": e["track_uuid"], "type": e["type"], "args": args,
                         "name": e.get("name") or names["event_names"].get(e.get("name_iid")),
                         "category": [names["event_categories"][c] for c in e.get("category_iids", [])],
                         "flows": e.get("flow_ids", [])}
                self.events.append(event)
        # As trace_processor does: by time, and in the order of the file where times are equal.
        for event in sorted(self.events, key=lambda e: e["time"]):
            stack = open_slices.setdefault(event["track"], [])
            if event["type"] == BEGIN:
                stack.append(event)
                event["end"] = None
                self.slices.append(event)
            elif event["type"] == END:
                begun = stack.pop()
                begun["end"] = event["time"]
                begun["args"].update(event["args"])

    def process(self, track):
        """The name of the process that a track belongs to."""
        t = self.tracks[track]
        while "process" not in t:
            t = self.tracks[t["parent_uuid"]]
        return t["process"]["process_name"]
