"""events_read.py DIRECTORY: prints what TensorBoard's reader finds in its event files."""
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in ("train/loss", "lr"):
    print(tag, *((e.step, e.value) for e in events.Scalars(tag)))
print("config", events.Tensors("config")[0].tensor_proto.string_val[0].decode())
weights = events.Histograms("weights")[0]
h = weights.histogram_value
print("weights", weights.step, h.num, h.min, h.max)
