"""Operators whose shapes need more than their inputs': recurrent layers, bodies, and shapes that a run recorded."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from allotment_planner import Model, PlanError, plan_onnx, validate
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, shape: Any, dtype: int = FLOAT) -> Any:
    """A tensor's type."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any] | None = None) -> Any:
    """A checked model."""
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    made = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, initializers), opset_imports=[helper.make_opsetid("", 18)])
    onnx.checker.check_model(made)
    return made


def shapes(made: Model) -> dict[str, list[int]]:
    """Our shapes by tensor."""
    return {tensor["name"]: tensor.get("shape", []) for tensor in made.to_json()["tensors"]}


def theirs(made: Any) -> dict[str, list[int]]:
    """The shapes that onnx's inference finds."""
    graph = onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True).graph
    found = [*graph.value_info, *graph.output]
    return {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in found}


@pytest.mark.parametrize("op", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layout", [0, 1])
def test_recurrent_layers(op: str, direction: str, layout: int) -> None:
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[op]
    ways, hidden, size = 2 if direction == "bidirectional" else 1, 5, 3
    constants = {
        "w": np.zeros((ways, gates * hidden, size), np.float32),
        "r": np.zeros((ways, gates * hidden, hidden), np.float32),
    }
    outputs = ["y", "h", "c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, ["x", "w", "r"], outputs, hidden_size=hidden, direction=direction, layout=layout)
    made = model([node], [info("x", [7, 2, size])], [info(name, list("abcd")[: 4 - (name != "y")]) for name in outputs], constants)
    found, wanted = shapes(Model.from_onnx(made)), theirs(made)
    assert {name: found[name] for name in outputs} == {name: wanted[name] for name in outputs}
    assert plan_onnx(made).status == "optimal"


def branch(name: str, steps: int) -> Any:
    """A chain of `steps` operators on the outer `x`, and one from it to the output."""
    nodes = [helper.make_node("Sin", ["x" if k == 0 else f"t{k}"], [f"t{k + 1}"]) for k in range(steps)]
    nodes.append(helper.make_node("Add", [f"t{steps}", "x"], [f"{name}_out"]))
    return helper.make_graph(nodes, name, [], [info(f"{name}_out", [256])])


def test_branches_share_their_memory() -> None:
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("then", 3), else_branch=branch("else", 3), name="if")
    last = helper.make_node("Neg", ["y"], ["z"])
    made = model([node, last], [info("c", [], BOOL), info("x", [256])], [info("z", [256])])
    read = Model.from_onnx(made)
    assert shapes(read)["y"] == [256] and shapes(read)["if/then_branch/t1"] == [256]
    # The output and two temporaries at a time, of one branch.
    plan = read.plan(align=1)
    assert (plan.status, plan.peak) == ("optimal", 3 * 1024)
    validate(plan)
    with pytest.raises(PlanError, match="cannot be reordered: the model has If"):
        read.reordered()
    # What a branch returns lies in the operator's output; nothing is made twice.
    assert not any(name.endswith("_out") for name in shapes(read))


def body_of_loop() -> Any:
    """Doubles a state, and returns its sine."""
    nodes = [
        helper.make_node("Mul", ["s", "two"], ["s_out"]),
        helper.make_node("Sin", ["s_out"], ["part"]),
        helper.make_node("Identity", ["go"], ["go_out"]),
    ]
    inputs = [info("i", [], INT64), info("go", [], BOOL), info("s", [64])]
    return helper.make_graph(nodes, "body", inputs, [info("go_out", [], BOOL), info("s_out", [64]), info("part", [64])])


def loop(count: bool) -> Any:
    """A model with a loop of ten rounds, whose number is known or not."""
    nodes = [helper.make_node("Exp", ["x"], ["start"]), helper.make_node("Loop", ["m", "", "start"], ["last", "all"], body=body_of_loop(), name="loop")]
    nodes.append(helper.make_node("Neg", ["all"], ["z"]))
    constants: dict[str, Any] = {"two": np.float32(2.0)}
    inputs = [info("x", [64])]
    if count:
        constants["m"] = np.int64(10)
    else:
        inputs.append(info("m", [], INT64))
    return model(nodes, inputs, [info("z", ["n", 64]), info("last", [64])], constants)


def test_loops() -> None:
    read = Model.from_onnx(loop(True))
    found = shapes(read)
    assert (found["last"], found["all"], found["loop/body/part"], found["z"]) == ([64], [10, 64], [64], [10, 64])
    ops = {op["name"]: op for op in read.to_json()["ops"]}
    # What a round reads lives to the end of all: the state, and what comes from outside.
    assert {"loop/body/s", "last", "all", "two"} <= set(ops["loop.end"]["inputs"])
    made = read.plan(align=1)
    at, sizes = made.by_name(), {"start": 256, "loop/body/s": 256, "last": 256, "all": 2560, "loop/body/part": 256}
    live = ["loop/body/s", "last", "all", "loop/body/part"]
    for one in live:
        for other in live:
            assert one == other or at[one] + sizes[one] <= at[other] or at[other] + sizes[other] <= at[one]
    validate(made)


def test_a_loop_of_unknown_length_needs_shapes() -> None:
    with pytest.raises(PlanError, match="how often it runs is not known: give the shape of `all` with --shapes"):
        Model.from_onnx(loop(False))
    read = Model.from_onnx(loop(False), shapes={"all": [6, 64]})
    assert shapes(read)["z"] == [6, 64]
    with pytest.raises(PlanError, match="`s_out` goes in as"):
        changed = loop(True)
        changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((3, 64), np.float32), "two"))
        Model.from_onnx(changed)


def test_scans() -> None:
    nodes = [helper.make_node("Add", ["s", "part"], ["s_out"]), helper.make_node("Sin", ["s_out"], ["each"])]
    body = helper.make_graph(
        nodes, "body", [info("s", [8]), info("part", [8])], [info("s_out", [8]), info("each", [8])]
    )
    node = helper.make_node("Scan", ["start", "xs"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1], name="scan")
    made = model([node], [info("start", [8]), info("xs", [8, 12])], [info("last", [8]), info("all", [8, 12])])
    found = shapes(Model.from_onnx(made))
    assert (found["last"], found["all"], found["scan/body/part"]) == ([8], [8, 12], [8])
    assert plan_onnx(made).status == "optimal"


def unknown() -> Any:
    """A model with an operator whose shape depends on its input's values."""
    nodes = [helper.make_node("NonZero", ["x"], ["n"], name="find"), helper.make_node("Cast", ["n"], ["z"], to=FLOAT)]
    return model(nodes, [info("x", [64])], [info("z", ["a", "b"])])


def test_recorded_shapes_are_a_way_out(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanError, match="input 0 is not known before the model runs; give the shapes of its outputs .n. with"):
        Model.from_onnx(unknown())
    typed = {"n": {"shape": [1, 20], "dtype": "int64"}}
    profile = [{"cat": "Node", "name": "find_kernel_time", "args": {"output_type_shape": [{"int64": [1, 20]}]}}]
    stated = unknown()
    stated.graph.value_info.append(info("n", [1, 20], INT64))
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps(profile))
    wanted = shapes(Model.from_onnx(unknown(), shapes=typed))
    assert (wanted["n"], wanted["z"]) == ([1, 20], [1, 20])
    for told in (json.dumps(profile).encode(), path):
        read = Model.from_onnx(unknown(), shapes=told)
        assert shapes(read) == wanted and read.plan().status == "optimal"
        assert next(tensor for tensor in read.to_json()["tensors"] if tensor["name"] == "n")["dtype"] == "int64"
    # The model's own statement needs no file.
    assert shapes(Model.from_onnx(stated)) == wanted


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (b"{", "the shapes are no JSON"),
        (b"7", "neither a dictionary by tensor"),
        (b"{}", "neither a dictionary by tensor"),
        (b'{"n": "wide"}', "the shape of `n` is not understood"),
        (b'{"n": {"shape": [1], "dtype": "text"}}', "the shape of `n` is not understood"),
        (b'{"m": [1]}', "NonZero.: input 0 is not known"),
    ],
)
def test_wrong_shapes_are_said(told: bytes, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Model.from_onnx(unknown(), shapes=told)
