"""Offsets for buffers of known lifetimes, in the smallest arena, with a proof.

>>> from allotment_planner import plan
>>> made = plan([8, 4, 8], [0, 2, 3], [3, 5, 6])
>>> made.peak, made.status
(12, 'optimal')

Sizes and offsets are bytes. Lifetimes are half-open ranges of time steps: a buffer is live from ``lower`` until before ``upper``.
"""

from __future__ import annotations

from ._native import __version__
from ._plan import CapacityError, Place, Plan, PlanError, Progress, Status, Step, plan, plan_csv, validate
from ._model import Model, plan_onnx, plan_tflite

__all__ = [
    "CapacityError",
    "Model",
    "Place",
    "Plan",
    "PlanError",
    "Progress",
    "Status",
    "Step",
    "__version__",
    "plan",
    "plan_csv",
    "plan_onnx",
    "plan_tflite",
    "validate",
]
