"""Plans of models."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
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
        self._order: Optional[str] = None

    def keep_order(self, why: str) -> None:
        """Refuses ``reorder`` from now on: the operators depend on each other in ways that the graph does not tell."""
        self._order = why

    @classmethod
    def from_onnx(cls, source: Any, dims: Optional[Mapping[str, int]] = None, shapes: Any = None) -> Model:
        """Reads an ONNX model: bytes, a path, or a ``ModelProto``. Of a path, files beside the model are read too if shapes depend on them.

        :param dims: the sizes of its open dimensions; one without a name is called by its input and its place, ``x.0``
        :param shapes: shapes for what cannot be inferred: a dictionary from tensors to shapes, or bytes or a path of one as JSON or
            of a profile of ONNX Runtime
        """
        told = None
        if shapes is not None:
            told = json.dumps(shapes).encode() if isinstance(shapes, Mapping) else content(shapes)
        folder = os.path.dirname(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else None
        try:
            made = cls(_native.Model.from_onnx(content(source), dict(dims or {}), told, folder))
        except ValueError as error:
            raise PlanError(str(error)) from None
        if made._native.has_bodies:
            made.keep_order("the model has If, Loop or Scan")
        return made

    @classmethod
    def from_tflite(cls, source: Source) -> Model:
        """Reads a TFLite model: bytes or a path."""
        try:
            made = cls(_native.Model.from_tflite(content(source)))
        except ValueError as error:
            raise PlanError(str(error)) from None
        if made._native.has_bodies:
            made.keep_order("the model has subgraphs or variables")
        return made

    @classmethod
    def from_json(cls, source: Union[Source, Mapping[str, Any]]) -> Model:
        """Reads a graph in the form of :meth:`to_json`: bytes, a path, or a dictionary."""
        text = json.dumps(source).encode() if isinstance(source, Mapping) else content(source)
        try:
            return cls(_native.Model.from_json(text))
        except ValueError as error:
            raise PlanError(str(error)) from None

    def to_json(self) -> dict[str, Any]:
        """The graph as a dictionary with the lists ``tensors`` (name, bytes, kind, shape, dtype) and ``ops`` (name, kind, inputs, outputs,
        sharing, cost), the operators in order of execution: what a compiler without an importer here writes."""
        return cast("dict[str, Any]", json.loads(self._native.to_json()))

    def plan(
        self,
        *,
        align: int = 16,
        weights: bool = False,
        inputs: bool = False,
        in_place: bool = False,
        reorder: bool = False,
        rematerialise: Optional[int] = None,
        stream: Optional[int] = None,
        spill: Optional[int] = None,
        joint: Optional[int] = None,
        time_limit: float = 60.0,
        seed: int = 0,
        work: Optional[int] = None,
        **options: Any,
    ) -> Plan[list[int]]:
        """Plans the tensors. The plan has a place for each (:attr:`Plan.places`), and says what is done in which order
        (:attr:`Plan.steps`): the places hold for those steps alone.

        :param align: alignment of every buffer in bytes, to which sizes are rounded up
        :param weights: plan the weights too
        :param inputs: plan the inputs too
        :param in_place: let views share their tensor's memory, and let operators overwrite inputs that are not read again
        :param reorder: run the operators in the order that needs the least memory
        :param rematerialise: run cheap operators again instead of keeping their results, for up to this many elements more
        :param stream: pass tensors between operators that go element by element in this many chunks
        :param spill: move tensors to a slower memory (tier 1) while they are not read, so that no more bytes than these are in use
        :param joint: with ``spill``: choose the order, what runs again and what is moved in one search; a unit of work counts as so many bytes
        :param options: those of :func:`allotment_planner.plan` that are not columns
        :raises PlanError: if the changes are not for this model; see :meth:`keep_order`
        """
        moves = {"reorder": reorder, "rematerialise": rematerialise, "stream": stream, "joint": joint}
        given = [name for name, value in moves.items() if value]
        if self._order is not None and given:
            raise PlanError(f"the operators cannot be moved ({given[0]}): {self._order}")
        changes: dict[str, Any] = {"in_place": in_place, "reorder": reorder, "rematerialise": rematerialise, "stream": stream}
        limits: dict[str, Any] = {"time_limit": time_limit, "seed": seed, "work": work}
        problem, places, told = self._lowered(
            align=align, weights=weights, inputs=inputs, spill=spill, joint=joint, **changes, **limits
        )
        made = solved(problem, **limits, **options)
        lying = zip(self._native.tensors, places)
        tensors = {name: place for name, place in lying if place is not None}
        return replace(made, tensors=tensors, told=told)

    def reordered(self, time_limit: float = 15.0) -> Model:
        """Returns the model with its operators in the order that needs the least memory: :meth:`to_json` lists them in that order, for
        which the offsets of its plans hold.

        :param time_limit: seconds after which the best order so far is taken
        :raises PlanError: if the operators depend on each other in ways that the graph does not tell
        """
        if self._order is not None:
            raise PlanError(f"the operators cannot be reordered: {self._order}")
        try:
            return Model(self._native.reordered(time_limit))
        except (ValueError, OverflowError) as error:
            raise PlanError(str(error)) from None

    def _lowered(self, **options: Any) -> tuple[_native.Problem, list[Optional[int]], list[str]]:
        try:
            return self._native.lowered(**options)
        except (ValueError, OverflowError) as error:
            raise PlanError(str(error)) from None

    def planned_tflite(self, **options: Any) -> bytes:
        """Returns a TFLite model with a plan in its metadata, which TFLite Micro's interpreter uses instead of its own.

        The options are those of :meth:`plan` but for ``weights`` and ``reorder``; inputs are planned unless ``inputs=False``.
        """
        shape = {"align": 16, "inputs": True, "in_place": False} | {
            key: options.pop(key) for key in ("align", "inputs", "in_place") if key in options
        }
        problem, places, _ = self._lowered(weights=False, **shape)
        made = solved(problem, **options)
        offsets = [
            -1 if place is None or constant else made.offsets[place]
            for place, constant in zip(places, self._native.constants)
        ]
        try:
            return self._native.with_offline_plan(offsets)
        except (ValueError, OverflowError) as error:
            raise PlanError(str(error)) from None


def plan_onnx(
    source: Any, dims: Optional[Mapping[str, int]] = None, shapes: Any = None, **options: Any
) -> Plan[list[int]]:
    """Plans an ONNX model: :meth:`Model.from_onnx`, then :meth:`Model.plan`."""
    return Model.from_onnx(source, dims, shapes).plan(**options)


def plan_tflite(source: Source, **options: Any) -> Plan[list[int]]:
    """Plans a TFLite model: :meth:`Model.from_tflite`, then :meth:`Model.plan`."""
    return Model.from_tflite(source).plan(**options)
