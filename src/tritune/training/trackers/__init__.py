"""Where the curves of a run can be sent, besides its own log: TensorBoard, Weights & Biases, trackio."""

from tritune.training.trackers.base import Tracker, TrackerCallback, make_trackers

__all__ = ["Tracker", "TrackerCallback", "make_trackers"]
