"""read_with_wheel.py TRACE: what Perfetto's own schema, as the PyPI package `perfetto` ships it, makes of a trace.

Fails where a field is not of the schema or where the schema would write other bytes; else counts, as JSON.
"""
import json
import sys

from google.protobuf import unknown_fields
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema


def check(message):
    assert len(unknown_fields.UnknownFieldSet(message)) == 0, (type(message), message)
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for one in value if getattr(field, "is_repeated", None) or not hasattr(value, "ListFields") else [value]:
                check(one)


with open(sys.argv[1], "rb") as f:
    data = f.read()
trace = schema.Trace()
trace.ParseFromString(data)
check(trace)
assert trace.IsInitialized() and trace.SerializeToString(deterministic=True) == data, "the schema writes other bytes"
events = [p.track_event for p in trace.packet if p.HasField("track_event")]
print(json.dumps({"packets": len(trace.packet), "tracks": sum(p.HasField("track_descriptor") for p in trace.packet),
                  "begins": sum(e.type == schema.TrackEvent.TYPE_SLICE_BEGIN for e in events),
                  "flows": len({f for e in events for f in e.flow_ids})}))
