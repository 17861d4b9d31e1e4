"""Plans of models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional, Union, cast

from . import _native
from ._plan import Plan, PlanError, solved

Source = Union[bytes, bytearray, str, "os.PathLike[str]"]


def content(source: Any) -> bytes:
    """The bytes of a model: given as such, as a path, or as a message of the package ``onnx``."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if hasattr(source, "SerializeToString"):
        return cast(bytes, source.SerializeToString())
    with open(source, "rb") as file:
        return file.read()


class Model:
    """A model's operators and tensors, ready to be planned."""

    def __init__(self, native: _native.Model) -> None:
        self._native = native

    @classmethod
    def from_onnx(cls, source: Any, dims: Optional[Mapping[str, int]] = None) -> Model:
        """Reads an ONNX model: bytes, a path, or a ``ModelProto``. ``dims`` gives the sizes of its named dimensions."""
        try:
            return cls(_native.Model.from_onnx(content(source), dict(dims or {})))
        except ValueError as error:
            raise PlanError(str(error)) from None

    @classmethod
    def from_tflite(cls, source: Source) -> Model:
        """Reads a TFLite model: bytes or a path."""
        try:
            return cls(_native.Model.from_tflite(content(source)))
        except ValueError as error:
            raise PlanError(str(error)) from None

    @property
    def tensors(self) -> list[tuple[str, list[int], str, int, str]]:
        """Name, shape, element type, bytes and role of each tensor."""
        return self._native.tensors

    @property
    def ops(self) -> list[tuple[str, str, list[int], list[int], str, int]]:
        """Name, type, inputs, outputs, way of sharing and cost of each operator."""
        return self._native.ops

    def plan(
        self,
        *,
        align: int = 16,
        weights: bool = False,
        inputs: bool = False,
        in_place: bool = False,
        reorder: bool = False,
        time_limit: float = 60.0,
        **options: Any,
    ) -> Plan[list[int]]:
        """Plans the tensors.

        :param align: alignment of every buffer in bytes, to which sizes are rounded up
        :param weights: plan the weights too
        :param inputs: plan the inputs too
        :param in_place: let views share their tensor's memory, and let operators overwrite inputs that are not read again
        :param reorder: run the operators in the order that needs the least memory
        :param options: those of :func:`allotment_planner.plan` that are not columns
        """
        problem, _ = self._lowered(align, weights, inputs, in_place, reorder, time_limit)
        return solved(problem, time_limit=time_limit, **options)

    def _lowered(
        self, align: int, weights: bool, inputs: bool, in_place: bool, reorder: bool, time_limit: float
    ) -> tuple[_native.Problem, list[Optional[int]]]:
        try:
            native = self._native.reordered(time_limit / 4) if reorder else self._native
            return native.lowered(align=align, weights=weights, inputs=inputs, in_place=in_place)
        except (ValueError, OverflowError) as error:
            raise PlanError(str(error)) from None

    def planned_tflite(self, **options: Any) -> bytes:
        """Returns a TFLite model with a plan in its metadata, which TFLite Micro's interpreter uses instead of its own.

        The options are those of :meth:`plan` but for ``weights`` and ``reorder``; inputs are planned unless ``inputs=False``.
        """
        shape = {"align": 16, "inputs": True, "in_place": False} | {
            key: options.pop(key) for key in ("align", "inputs", "in_place") if key in options
        }
        problem, places = self._lowered(
            shape["align"], False, shape["inputs"], shape["in_place"], False, options.get("time_limit", 60.0)
        )
        made = solved(problem, **options)
        constant = {n for n, tensor in enumerate(self.tensors) if tensor[4] == "constant"}
        offsets = [
            -1 if place is None or n in constant else made.offsets[place] for n, place in enumerate(places)
        ]
        try:
            return self._native.with_offline_plan(offsets)
        except (ValueError, OverflowError) as error:
            raise PlanError(str(error)) from None


def plan_onnx(source: Any, dims: Optional[Mapping[str, int]] = None, **options: Any) -> Plan[list[int]]:
    """Plans an ONNX model: :meth:`Model.from_onnx`, then :meth:`Model.plan`."""
    return Model.from_onnx(source, dims).plan(**options)


def plan_tflite(source: Source, **options: Any) -> Plan[list[int]]:
    """Plans a TFLite model: :meth:`Model.from_tflite`, then :meth:`Model.plan`."""
    return Model.from_tflite(source).plan(**options)
