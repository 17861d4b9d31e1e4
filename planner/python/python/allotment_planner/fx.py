"""Plans of PyTorch graphs: what ``torch.export`` and ``torch.fx`` make.

>>> exported = torch.export.export(module, inputs)          # doctest: +SKIP
>>> made = allotment_planner.fx.plan_graph(exported)        # doctest: +SKIP
>>> made.by_name()["conv2d"]                                # doctest: +SKIP

A tensor lives from the node that makes its memory to the last node that reads it, through whatever view. Views have no memory of
their own: tensors that share a storage in the graph are one buffer (``ShapeProp`` does not tell; there, every tensor has its own). The bodies of control flow (``cond``, ``while_loop``) count as one
operator, whose inner tensors are not planned.

This module imports nothing of PyTorch, and was tried with PyTorch 2.15.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional

from ._model import Model
from ._plan import Plan, PlanError

__all__ = ["model", "plan_graph"]


def model(source: Any, dims: Optional[Mapping[str, int]] = None) -> Model:
    """Reads an ``ExportedProgram`` or a ``GraphModule`` whose nodes know their shapes (``meta["val"]``, or ``meta["tensor_meta"]`` from
    ``ShapeProp``).

    :param dims: the values of symbolic dimensions, by the names in the graph, such as ``s0``
    :raises PlanError: if a node's shape is not known, or depends on a dimension that is not given
    """
    return _Reader(dict(dims or {})).read(source)


def plan_graph(source: Any, dims: Optional[Mapping[str, int]] = None, **options: Any) -> Plan[list[int]]:
    """Plans a graph: :func:`model`, then :meth:`allotment_planner.Model.plan`. Buffers are named by the nodes that make them."""
    return model(source, dims).plan(**options)


class _Reader:
    """Turns nodes into tensors and operators."""

    def __init__(self, dims: dict[str, int]) -> None:
        self.dims = dims
        self.tensors: dict[str, dict[str, Any]] = {}
        self.ops: list[dict[str, Any]] = []
        # The tensor that holds each storage, and the tensors that each node's value lies in.
        self.storages: dict[int, str] = {}
        self.of_node: dict[str, list[str]] = {}
        # A node that writes into a tensor of another.
        self.writes: Optional[str] = None

    def read(self, source: Any) -> Model:
        module = getattr(source, "graph_module", source)
        signature = getattr(source, "graph_signature", None)
        fixed: set[str] = set()
        mutated: set[str] = set()
        if signature is not None:
            fixed.update(signature.inputs_to_parameters, signature.inputs_to_buffers)
            fixed.update(getattr(signature, "inputs_to_lifted_tensor_constants", ()))
            written = set(signature.buffers_to_mutate.values())
            mutated.update(name for name, buffer in signature.inputs_to_buffers.items() if buffer in written)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                kind = "state" if node.name in mutated else "constant" if node.name in fixed else "input"
                self._values(node, kind)
            elif node.op == "get_attr":
                if self._known(node):
                    self._values(node, "constant")
            elif node.op == "output":
                self._outputs(node)
            else:
                self._operator(node)
        made = Model.from_json({"tensors": list(self.tensors.values()), "ops": self.ops})
        if self.writes is not None:
            made.keep_order(f"node `{self.writes}` writes a tensor in place: decompose the graph first")
        return made

    def _known(self, node: Any) -> bool:
        return any(key in node.meta for key in ("val", "tensor_meta", "type"))

    def _values(self, node: Any, kind: str) -> list[str]:
        """Adds the memory that a node makes; returns the tensors that are new."""
        value = node.meta.get("val", node.meta.get("tensor_meta"))
        new: list[str] = []
        mine: list[str] = []
        for n, part in enumerate(_flat(value)):
            if not hasattr(part, "shape") or not hasattr(part, "dtype"):
                continue
            name = node.name if n == 0 else f"{node.name}.{n}"
            storage = _storage(part)
            if storage is not None and storage in self.storages:
                mine.append(self.storages[storage])
                continue
            shape = [self._size(dim, node) for dim in part.shape]
            elements = 1
            for dim in shape:
                elements *= dim
            # Strided tensors may leave holes; a storage's own size counts them.
            size = elements * part.dtype.itemsize
            self.tensors[name] = {
                "name": name,
                "bytes": size,
                "kind": kind,
                "shape": shape,
                "dtype": str(part.dtype).replace("torch.", ""),
            }
            if storage is not None:
                self.storages[storage] = name
            new.append(name)
            mine.append(name)
        self.of_node[node.name] = mine
        return new

    def _size(self, dim: Any, node: Any) -> int:
        if isinstance(dim, int):
            return dim
        expression = getattr(getattr(dim, "node", None), "expr", None)
        if expression is not None:
            # By name: the symbols of a graph carry assumptions that new ones would lack.
            known = {symbol: self.dims[str(symbol)] for symbol in expression.free_symbols if str(symbol) in self.dims}
            value = expression.subs(known)
            if not value.free_symbols:
                return int(value)
            open_ones = ", ".join(sorted(str(symbol) for symbol in value.free_symbols))
            raise PlanError(f"node `{node.name}`: the dimension {open_ones} is open: give it in `dims`")
        raise PlanError(f"node `{node.name}` has the dimension {dim}, which is no number")

    def _operator(self, node: Any) -> None:
        inputs = _unique(tensor for other in node.all_input_nodes for tensor in self.of_node.get(other.name, []))
        if getattr(node.target, "__name__", "") == "getitem" and node.all_input_nodes:
            # One part of what the node before it made.
            parts = self.of_node.get(node.all_input_nodes[0].name, [])
            index = node.args[1]
            whole = isinstance(index, int) and index < len(parts)
            self.of_node[node.name] = [parts[index]] if whole else parts
            return
        if not self._known(node):
            if any(True for _ in node.users):
                raise PlanError(f"node `{node.name}` ({node.target}) has no shape: export the module, or run `ShapeProp` on it")
            self.of_node[node.name] = []
            outputs = []
        else:
            outputs = self._values(node, "intermediate")
        if not outputs and node.users and set(inputs) == set(self.of_node[node.name]):
            # A view: only what reads it counts.
            return
        if getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            self.writes = node.name
        tags = getattr(node.target, "tags", ())
        pointwise = any(getattr(tag, "name", "") == "pointwise" for tag in tags)
        self.ops.append(
            {
                "name": node.name,
                "kind": str(node.target),
                "inputs": inputs,
                "outputs": outputs,
                "sharing": "in-place" if pointwise else "none",
            }
        )

    def _outputs(self, node: Any) -> None:
        for other in node.all_input_nodes:
            for name in self.of_node.get(other.name, []):
                if self.tensors[name]["kind"] == "intermediate":
                    self.tensors[name]["kind"] = "output"


def _flat(value: Any) -> list[Any]:
    """A node's values in order; named tuples of shape data count as one."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "dtype"):
        return [part for item in value for part in _flat(item)]
    return [value]


def _storage(value: Any) -> Optional[int]:
    """What tells a storage from others, if the value has one."""
    try:
        return int(value.untyped_storage()._cdata)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
