"""Plans of models."""

import pytest
from allotment_planner import Model, PlanError, plan, plan_onnx, validate

MODELS = [
    ("kws_dscnn", {}),
    ("resnet8_cifar", {"batch": 1}),
    ("encoder2_dyn", {"batch": 1, "seq": 64}),
    ("unet_w8", {}),
]


@pytest.mark.parametrize(("name", "dims"), MODELS)
def test_onnx_models_are_planned(data, name, dims) -> None:  # type: ignore[no-untyped-def]
    path = data / "onnx" / f"{name}.onnx"
    made = plan_onnx(path, dims, align=256)
    assert made.status == "optimal"
    validate(made)
    # The instance is the one that follows from what ONNX Runtime produced.
    lines = (data / "onnx" / f"{name}.plan.csv").read_text().splitlines()
    header = lines[0].split(",")
    rows = [dict(zip(header, line.split(","))) for line in lines[1:]]
    wanted = plan(*([int(row[key]) for row in rows] for key in ("size", "lower", "upper")))
    assert made.peak == wanted.peak
    assert plan_onnx(path.read_bytes(), dims, align=256).offsets == made.offsets
    assert plan_onnx(path, dims, align=256, in_place=True).peak <= made.peak
    assert plan_onnx(path, dims, align=256, reorder=True).peak <= made.peak


def test_messages_of_the_package_onnx_are_planned(data) -> None:  # type: ignore[no-untyped-def]
    onnx = pytest.importorskip("onnx")
    path = data / "onnx" / "kws_dscnn.onnx"
    assert plan_onnx(onnx.load(path)).offsets == plan_onnx(path).offsets


def test_open_dimensions_are_named(data) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanError, match="`seq` of the input .* is open: .*dims={.seq.: 1}"):
        plan_onnx(data / "onnx" / "encoder2_dyn.onnx", {"batch": 1})


def test_graphs_are_written_and_read_again(data) -> None:  # type: ignore[no-untyped-def]
    model = Model.from_onnx(data / "onnx" / "kws_dscnn.onnx")
    graph = model.to_json()
    assert {tensor["kind"] for tensor in graph["tensors"]} == {"input", "constant", "intermediate", "output"}
    assert any(op["kind"] == "Conv" for op in graph["ops"])
    again = Model.from_json(graph)
    assert again.to_json() == graph
    for options in ({}, {"in_place": True}, {"reorder": True}):
        assert again.plan(**options).offsets == model.plan(**options).offsets
    graph["ops"][0]["inputs"] = ["nothing"]
    with pytest.raises(PlanError, match="`nothing`, which is not listed"):
        Model.from_json(graph)
