"""A memory planning algorithm for ExecuTorch.

>>> import allotment_planner.executorch                                     # doctest: +SKIP
>>> from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite  # doctest: +SKIP
>>> from executorch.exir.passes import MemoryPlanningPass                   # doctest: +SKIP
>>> suite = MemoryPlanningAlgorithmSuite([allotment_planner.executorch.algorithm()])  # doctest: +SKIP
>>> edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(suite)))  # doctest: +SKIP

Tried with ExecuTorch 1.5.1. :func:`check_pte` checks the plan in a ``.pte`` file, whoever made it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Union

from ._plan import Plan, PlanError, plan, validate

__all__ = ["algorithm", "check_pte"]


def algorithm(**options: Any) -> Callable[..., Any]:
    """Returns an algorithm for ``MemoryPlanningAlgorithmSuite``. The options are those of :func:`allotment_planner.plan` that are not
    columns, such as ``time_limit``."""

    def allotment(
        alignment: int,
        specs: Iterable[Any],
        graph_module: Any,
        graph_signature: Any,
        extra_padding: int = 0,
    ) -> Any:
        from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult

        placed: dict[Any, Any] = {}
        roots = []
        for spec in specs:
            spec.realign(alignment)
            placed[spec] = SpecAllocResult(1 if spec.mem_id is None else spec.mem_id, 0, 0)
            if getattr(spec, "storage_base", None) is None:
                roots.append(spec)
        # The specs come as a set: an order of their own makes the plan the same in every run.
        roots.sort(key=lambda spec: (spec.lifetime, spec.allocated_memory, str(spec.dtype), list(map(str, spec.shape))))
        taken = list(getattr(graph_module, "input_mem_buffer_sizes", None) or [])
        tiers = [placed[spec].mem_id for spec in roots]
        made = plan(
            [spec.allocated_memory for spec in roots],
            [spec.lifetime[0] for spec in roots],
            [spec.lifetime[1] + 1 for spec in roots],
            align=alignment,
            tier=tiers,
            **options,
        )
        sizes = taken + [0] * (max(tiers, default=1) + 1 - len(taken))
        first = list(sizes)
        for spec, tier, offset in zip(roots, tiers, made.offsets):
            placed[spec].mem_offset = first[tier] + offset
            sizes[tier] = max(sizes[tier], first[tier] + offset + spec.allocated_memory)
        for spec, place in placed.items():
            # A part of another tensor's memory lies where that lies.
            base, offset = spec, 0
            while getattr(base, "storage_base", None) is not None:
                offset += base.storage_base_offset
                base = base.storage_base
            if base is not spec:
                place.mem_id = placed[base].mem_id
                place.mem_offset = placed[base].mem_offset + offset
        used = {place.mem_id for place in placed.values()}
        return MemoryAlgoResult(placed, [size + extra_padding if tier in used else size for tier, size in enumerate(sizes)])

    return allotment


def check_pte(source: Union[bytes, str, os.PathLike[str]]) -> list[Plan[list[int]]]:
    """Checks the memory plan in a ``.pte`` file against the lifetimes that follow from its instructions; returns each method's plan.

    Tensors of one size at one place count as views of one another.

    :raises PlanError: if two other tensors that are live at once overlap, or one ends above its buffer
    """
    from executorch.exir._serialize._program import deserialize_pte_binary

    if isinstance(source, bytes):
        data = source
    else:
        with open(source, "rb") as file:
            data = file.read()
    program = deserialize_pte_binary(data)
    program = getattr(program, "program", program)
    return [_method(method) for method in program.execution_plan]


def _arguments(instruction: Any) -> list[int]:
    """The values that an instruction names, inner lists of values included."""
    numbers = []
    arguments = instruction.instr_args
    for name in ("args", "value_index", "cond_value_index", "move_from", "move_to"):
        found = getattr(arguments, name, None)
        if isinstance(found, int):
            numbers.append(found)
        elif isinstance(found, list):
            numbers.extend(found)
    return numbers


def _method(method: Any) -> Plan[list[int]]:
    values = [value.val for value in method.values]
    spans: dict[int, list[int]] = {}

    def touch(number: int, step: int) -> None:
        value = values[number]
        for inner in getattr(value, "items", None) or []:
            if isinstance(inner, int) and 0 <= inner < len(values) and type(value).__name__ == "TensorList":
                touch(inner, step)
        if getattr(value, "allocation_info", None) is not None:
            span = spans.setdefault(number, [step, step])
            span[0], span[1] = min(span[0], step), max(span[1], step)

    step = 0
    for number in method.inputs:
        touch(number, 0)
    for chain in method.chains:
        for instruction in chain.instructions:
            step += 1
            for number in _arguments(instruction):
                touch(number, step)
    for number in method.outputs:
        touch(number, step + 1)
    sizes: list[int] = []
    lower: list[int] = []
    upper: list[int] = []
    tiers: list[int] = []
    offsets: list[int] = []
    names: list[str] = []
    for number, (first, end) in sorted(spans.items()):
        tensor = values[number]
        place = tensor.allocation_info
        size = _bytes(tensor)
        offset = place.memory_offset_low + (place.memory_offset_high << 32)
        limit = method.non_const_buffer_sizes[place.memory_id]
        if offset + size > limit:
            raise PlanError(f"value {number} of `{method.name}` at {offset} does not fit buffer {place.memory_id} of {limit} bytes")
        for column, entry in zip((sizes, lower, upper, tiers, offsets), (size, first, end + 1, place.memory_id, offset)):
            column.append(entry)
        names.append(str(number))
    # A view has no instruction of its own: values of one place and size that are live at once are one buffer.
    last: dict[tuple[int, int, int], int] = {}
    keep: list[int] = []
    for n in sorted(range(len(sizes)), key=lambda n: lower[n]):
        key = (tiers[n], offsets[n], sizes[n])
        before = last.get(key)
        if before is not None and lower[n] < upper[before]:
            upper[before] = max(upper[before], upper[n])
        else:
            last[key] = n
            keep.append(n)
    columns = [[column[n] for n in keep] for column in (sizes, lower, upper, tiers, offsets)]
    made = plan(*columns[:3], tier=columns[3], fixed=columns[4], names=[names[n] for n in keep])
    validate(made)
    return made


def _bytes(tensor: Any) -> int:
    """The bytes of a tensor in a program."""
    name = getattr(tensor.scalar_type, "name", str(tensor.scalar_type)).upper()
    wide = {"DOUBLE": 8, "LONG": 8, "FLOAT": 4, "INT": 4, "HALF": 2, "BFLOAT16": 2, "SHORT": 2, "UINT16": 2}
    size = wide.get(name, 1)
    for dim in tensor.sizes:
        size *= dim
    return size
