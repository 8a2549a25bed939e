"""events.py: writes events.tfevents: an event file as TensorBoard itself writes it: version, scalars, a text, a
restart, a histogram. Run it with a Python that has tensorboard; the tests only read what it wrote."""
import os

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

HERE = os.path.dirname(os.path.abspath(__file__))
Event, Summary = event_pb2.Event, summary_pb2.Summary


def value(time, step, **fields):
    return Event(wall_time=time, step=step, summary=Summary(value=[Summary.Value(**fields)]))


# 30 equal buckets of -1, 0, 0.5, 2
limits = [-1 + 3 / 30 * (b + 1) for b in range(29)] + [2.0]
counts = [0.0] * 30
for x in (-1, 0, 0.5, 2):
    counts[min(int((x + 1) / (3 / 30)), 29)] += 1
histogram = summary_pb2.HistogramProto(min=-1, max=2, num=4, sum=1.5, sum_squares=5.25, bucket_limit=limits, bucket=counts)
text = tensor_pb2.TensorProto(dtype=7, string_val=["a *b* \u00e4".encode()],
                              tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)]))
plugin = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"))

with open(os.path.join(HERE, "events.tfevents"), "wb") as f:
    writer = RecordWriter(f)
    for event in (
        Event(wall_time=1.5, file_version="brain.Event:2"),
        value(2.25, 1, tag="train/loss", simple_value=0.1),
        value(3.0, 2**40, tag="lr", simple_value=float("inf")),
        value(4.0, 0, tag="config", tensor=text, metadata=plugin),
        Event(wall_time=5.0, step=8, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)),
        value(6.0, 9, tag="weights", histo=histogram),
    ):
        writer.write(event.SerializeToString())
