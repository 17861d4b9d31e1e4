"""PyTorch graphs and ExecuTorch. What needs PyTorch runs where it is installed; the graphs that it exported are in `data`."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from allotment_planner import Model, PlanError, validate

GRAPHS = pathlib.Path(__file__).parent / "data"


def modules() -> dict[str, tuple[Any, Any]]:
    """Modules and inputs, by the names of the stored graphs."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        """Convolutions with a residual connection, a view and two outputs."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.second = nn.Conv2d(8, 8, 3, padding=1)
            self.last = nn.Linear(8 * 16, 10)

        def forward(self, x: Any) -> Any:
            a = torch.relu(self.first(x))
            b = torch.relu(self.second(a)) + a
            pooled = nn.functional.adaptive_avg_pool2d(b, 4)
            return self.last(pooled.reshape(b.shape[0], -1)), a.mean()

    attention = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    return {
        "residual": (Residual().eval(), (torch.randn(2, 3, 16, 16),)),
        "attention": (attention, (torch.randn(2, 24, 32),)),
    }


@pytest.mark.parametrize("name", ["residual", "attention"])
def test_exported_graphs_are_planned(name: str) -> None:
    stored = json.loads((GRAPHS / f"{name}.json").read_text())
    made = Model.from_json(stored).plan(align=64)
    assert made.status == "optimal"
    validate(made)
    total = sum(-(-tensor["bytes"] // 64) * 64 for tensor in stored["tensors"] if tensor["kind"] in ("intermediate", "output"))
    assert made.peak < total


def test_views_have_no_memory_of_their_own() -> None:
    stored = json.loads((GRAPHS / "residual.json").read_text())
    assert "reshape" not in {tensor["name"] for tensor in stored["tensors"]}
    assert {op["name"]: op for op in stored["ops"]}["linear"]["inputs"][0] == "adaptive_avg_pool2d"
    kinds = {tensor["name"]: tensor["kind"] for tensor in stored["tensors"]}
    assert (kinds["x"], kinds["p_first_weight"], kinds["linear"], kinds["mean"]) == ("input", "constant", "output", "output")


@pytest.mark.torch
@pytest.mark.parametrize("name", ["residual", "attention"])
def test_what_torch_exports_now_is_the_stored_graph(name: str) -> None:
    import torch
    from allotment_planner import fx

    module, inputs = modules()[name]
    made = fx.model(torch.export.export(module, inputs))
    stored = GRAPHS / f"{name}.json"
    if not stored.exists():
        stored.write_text(json.dumps(made.to_json(), indent=1) + "\n")
    assert made.to_json() == json.loads(stored.read_text())
    assert fx.plan_graph(torch.export.export(module, inputs), align=64).status == "optimal"


@pytest.mark.torch
def test_traced_modules_and_open_dimensions() -> None:
    import torch
    from allotment_planner import fx
    from torch.fx.passes.shape_prop import ShapeProp

    module, inputs = modules()["residual"]
    traced = torch.fx.symbolic_trace(module)
    with pytest.raises(PlanError, match="has no shape"):
        fx.model(traced)
    ShapeProp(traced).propagate(*inputs)
    assert fx.plan_graph(traced).status == "optimal"

    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(module, inputs, dynamic_shapes={"x": {0: batch}})
    with pytest.raises(PlanError, match="dimension s.* is open"):
        fx.model(exported)
    (symbol,) = {str(symbol) for symbol in exported.range_constraints}
    small, large = (fx.plan_graph(exported, {symbol: size}).peak for size in (2, 8))
    assert small < large


@pytest.mark.torch
def test_operators_in_place_count_as_readers() -> None:
    import torch
    from allotment_planner import fx

    class InPlace(torch.nn.Module):
        """Adds to a tensor in place what must live until then."""

        def forward(self, x: Any) -> Any:
            a, b = x * 2, x * 3
            c = torch.exp(x)
            a.add_(b)
            return a * c

    made = fx.model(torch.export.export_for_training(InPlace(), (torch.ones(64),)) if hasattr(torch.export, "export_for_training") else torch.export.export(InPlace(), (torch.ones(64),)))
    ops = {op["name"]: op for op in made.to_json()["ops"]}
    if "add_" in ops:
        assert ops["add_"]["inputs"] == ["mul", "mul_1"] and not ops["add_"]["outputs"]
        with pytest.raises(PlanError, match="`add_` writes a tensor in place"):
            made.reordered()
    assert made.plan().peak == 3 * 256


@pytest.mark.torch
@pytest.mark.parametrize("name", ["residual", "attention"])
def test_executorch_takes_the_plan(name: str) -> None:
    import torch
    from allotment_planner import executorch as ours
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
    from executorch.exir.passes import MemoryPlanningPass

    module, inputs = modules()[name]

    def program(*algorithms: Any) -> Any:
        edge = to_edge(torch.export.export(module, inputs), compile_config=EdgeCompileConfig(_check_ir_validity=False))
        suite = MemoryPlanningAlgorithmSuite(list(algorithms)) if algorithms else MemoryPlanningAlgorithmSuite()
        return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(suite)))

    planned, theirs = program(ours.algorithm()), program()
    sizes = [sum(made.executorch_program.execution_plan[0].non_const_buffer_sizes) for made in (planned, theirs)]
    assert sizes[0] <= sizes[1], sizes
    (checked,) = ours.check_pte(planned.buffer)
    assert 0 < checked.peak <= sizes[0]
    ours.check_pte(theirs.buffer)
    # The runtime computes what PyTorch computes.
    from executorch.runtime import Runtime

    outputs = Runtime.get().load_program(planned.buffer).load_method("forward").execute(list(inputs))
    wanted = module(*inputs)
    for got, want in zip(outputs, wanted if isinstance(wanted, tuple) else (wanted,)):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    print(name, "bytes:", sizes[0], "instead of", sizes[1])


@pytest.mark.torch
def test_a_wrong_plan_in_a_pte_is_found() -> None:
    import torch
    from allotment_planner import executorch as ours
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
    from executorch.exir.passes import MemoryPlanningPass

    module, inputs = modules()["residual"]
    edge = to_edge(torch.export.export(module, inputs), compile_config=EdgeCompileConfig(_check_ir_validity=False))
    suite = MemoryPlanningAlgorithmSuite([ours.algorithm()])
    made = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(suite)))
    plan = made.executorch_program.execution_plan[0]
    for value in plan.values:
        place = getattr(value.val, "allocation_info", None)
        if place is not None:
            place.memory_offset_low = 0
    with pytest.raises(PlanError, match="overlap at time"):
        ours._method(plan)
