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
    assert Model.from_onnx(path, dims).reordered().plan(align=256).peak <= made.peak
    assert Model.from_onnx(path, dims).plan(align=256, reorder=True).check_run() > 0


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
    assert again.reordered().to_json() == model.reordered().to_json()
    for options in ({}, {"in_place": True}):
        assert again.plan(**options).offsets == model.plan(**options).offsets
    graph["ops"][0]["inputs"] = ["nothing"]
    with pytest.raises(PlanError, match="`nothing`, which is not listed"):
        Model.from_json(graph)


def test_tensors_that_share_memory_have_their_offsets(data) -> None:  # type: ignore[no-untyped-def]
    model = Model.from_onnx(data / "onnx" / "resnet8_cifar.onnx", {"batch": 1})
    alone, shared = model.plan(), model.plan(in_place=True)
    assert len(shared.offsets) < len(alone.offsets)
    assert shared.by_name().keys() == alone.by_name().keys()
    assert all(shared.offsets[n] == shared.by_name()[name] for name, n in shared.tensors.items())


def test_an_order_stands_beside_its_offsets() -> None:
    def tensor(name: str, size: int, kind: str = "intermediate") -> dict[str, object]:
        return {"name": name, "bytes": size, "kind": kind}

    def op(inputs: str, output: str) -> dict[str, object]:
        return {"name": output, "inputs": list(inputs), "outputs": [output]}

    tensors = [tensor("x", 16, "input"), tensor("a", 1600), tensor("b", 160), tensor("c", 1600), tensor("d", 160)]
    ops = [op("x", "a"), op("x", "c"), op("a", "b"), op("c", "d"), op("bd", "y")]
    model = Model.from_json({"tensors": tensors + [tensor("y", 160, "output")], "ops": ops})
    ordered = model.reordered()
    order = [op["name"] for op in ordered.to_json()["ops"]]
    assert order != [op["name"] for op in ops] and sorted(order) == sorted(op["name"] for op in ops)
    made = ordered.plan()
    assert made.peak == 1920 < model.plan().peak
    # Each buffer begins with the operator at that place.
    starts = dict(zip(made.names, memoryview(made.problem.lower).cast("q")))
    assert [starts[name] for name in order] == list(range(len(order)))
    with pytest.raises(PlanError, match="another order than in the file"):
        ordered.planned_tflite()


def branches() -> Model:
    """Two branches that need less one after the other; ``a`` is cheap to make again."""

    def tensor(name: str, size: int, kind: str = "intermediate") -> dict[str, object]:
        return {"name": name, "bytes": size, "kind": kind}

    def op(name: str, inputs: str, output: str, cost: int = 900) -> dict[str, object]:
        return {"name": name, "inputs": list(inputs), "outputs": [output], "cost": cost}

    tensors = [tensor("x", 16, "input"), tensor("a", 1600), tensor("b", 160), tensor("c", 1600), tensor("d", 160)]
    ops = [op("f", "x", "a", 1), op("g", "x", "c"), op("h", "a", "b"), op("i", "c", "d"), op("j", "bda", "y")]
    return Model.from_json({"tensors": tensors + [tensor("y", 160, "output")], "ops": ops})


@pytest.mark.parametrize(
    "changes",
    [{}, {"reorder": True}, {"rematerialise": 9}, {"stream": 4}, {"spill": 3000}, {"in_place": True, "reorder": True}],
)
def test_a_plan_says_what_is_done(changes: dict[str, object]) -> None:
    made = branches().plan(inputs=True, **changes)  # type: ignore[arg-type]
    places, steps = made.places, made.steps
    assert places.keys() >= {"x", "a", "b", "c", "d", "y"}
    assert [step.do for step in steps][:1] == ["given"] and steps[-1].do == "taken" and steps[-1].reads == ["y"]
    ran = "".join(step.operator[0] for step in steps if step.do == "run")
    assert sorted(set(ran)) == list("fghij") and ran.count("f") == (2 if "rematerialise" in changes else 1)
    assert [step.do for step in steps].count("copy") == (6 if "spill" in changes else 0)
    # What each step names has a place at that time.
    for step in steps:
        for name in [*step.reads, *step.writes]:
            assert places[name].start <= step.time < places[name].end
    assert made.check_run(3) > 20
    assert len(made.told) == sum(name in changes for name in ("reorder", "rematerialise", "stream", "spill", "in_place")) + (
        3 if "spill" in changes else 0
    )


def test_proofs_say_what_they_speak_of() -> None:
    assert branches().plan().proved == "optimal for this order (proved)"
    assert branches().plan(reorder=True).proved == "optimal for all orders (proved)"
    assert branches().plan(in_place=True).proved == "optimal for this order and sharing (proved)"
    with pytest.raises(PlanError, match="do not go together"):
        branches().plan(spill=3000, in_place=True)
