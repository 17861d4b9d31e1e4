"""Plans in a model's metadata, run by the interpreter of TensorFlow Lite Micro that the package `tflite-micro` brings."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tflite_micro
from allotment_planner import Model, plan_tflite, validate
from tflite_micro import runtime

SINE = pathlib.Path(tflite_micro.__file__).parent / "python" / "tflite_micro" / "sine_float.tflite"


def outputs(model: bytes, arena: int = 1 << 16) -> list[float]:
    """What the interpreter computes for a few inputs."""
    interpreter = runtime.Interpreter.from_bytes(model, arena_size=arena)
    found = []
    for x in np.linspace(0.0, 6.0, 7, dtype=np.float32):
        interpreter.set_input(np.array([[x]], np.float32), 0)
        interpreter.invoke()
        found.append(float(interpreter.get_output(0)[0, 0]))
    return found


def test_the_interpreter_runs_the_plan() -> None:
    model = SINE.read_bytes()
    made = plan_tflite(model, inputs=True)
    assert made.status == "optimal"
    validate(made)
    planned = Model.from_tflite(model).planned_tflite()
    assert planned != model
    assert outputs(planned) == outputs(model)


def wrong(offsets_of: Any) -> bytes:
    """The model with other offsets than the plan's."""
    native = Model.from_tflite(SINE)._native
    _, places, _ = native.lowered(align=16, weights=False, inputs=True, in_place=False)
    planned = [n for n, place in enumerate(places) if place is not None and not native.constants[n]]
    offsets = dict(zip(planned, offsets_of(len(planned))))
    return native.with_offline_plan([offsets.get(n, -1) for n in range(len(places))])


def test_the_interpreter_uses_the_plan_and_not_its_own() -> None:
    # Spread out, the tensors do not fit an arena that is ample for the plan; all at one place, they spoil each other.
    far = wrong(lambda count: [8192 * n for n in range(count)])
    assert outputs(far) == outputs(SINE.read_bytes())
    with pytest.raises(RuntimeError):
        outputs(far, arena=1 << 13)
    outputs(Model.from_tflite(SINE).planned_tflite(), arena=1 << 13)
    assert outputs(wrong(lambda count: [0] * count)) != outputs(SINE.read_bytes())
