"""What `submit` writes of a model: the file as submitted, and the graph that was imported where that is another."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.commands.submit.words import shape_bindings
from autotune.errors import BadInput, ModelError
from autotune.network_plan.plan import NOTHING, Block, Plan, read
from autotune.options import InputSpec
from autotune.processes.messages import ImportRequest
from autotune.storage.formats import ShapeBinding
from autotune.storage.job_files import model_checksum
from autotune.storage.model_digest import digest_of, digest_of_bytes
from autotune.storage.paths import JobPaths
from autotune.tvm_backend import ingest
from autotune.tvm_backend.models import submission
from autotune.tvm_backend.models.onnx.read import parse_file, parse_graph, weight_files


def model(nodes):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = numpy_helper.from_array(np.ones((12, 8), np.float32), "w")
    target = numpy_helper.from_array(np.array([-1]), "rest")
    zero = numpy_helper.from_array(np.array([0]), "zero")
    graph = helper.make_graph([*nodes, helper.make_node("MatMul", ["flat", "w"], ["y"])], "g", [x], [y])
    graph.initializer.extend([weights, target, zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


PLAIN = model([helper.make_node("Flatten", ["x"], ["flat"])])
COMPUTED = model(
    [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["first"], axis=0),
        helper.make_node("Concat", ["first", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["flat"]),
    ]
)


@pytest.fixture
def imported(tmp_path):
    def run(proto, *sizes, plan=NOTHING):
        path = tmp_path / "model.onnx"
        job = JobPaths(tmp_path / "job")
        path.write_bytes(proto.SerializeToString())
        job.folder.mkdir()
        cpus = (0,)
        locks = str(tmp_path / "locks")
        shapes = shape_bindings({}, {"batch": sizes or (2,)})
        request = ImportRequest(str(path), "llvm", 1, cpus, locks, shapes, {}, False, str(job.folder), plan=plan)
        return ingest.run(request, lambda step, waiting=False: None), job

    return run


def test_a_model_that_computes_shapes_is_kept_as_submitted_and_as_imported(imported):
    answer, job = imported(COMPUTED)
    assert onnx.load(job.model) == COMPUTED
    assert "Shape" not in [node.op_type for node in onnx.load(job.rewritten_model()).graph.node]
    assert (answer.model_size, answer.model_crc32) == model_checksum(job)
    assert answer.inputs[0].shape == (2, 3, 4)


def test_a_model_that_needs_no_rewriting_is_kept_once(imported):
    answer, job = imported(PLAIN)
    assert onnx.load(job.model) == PLAIN and not job.rewritten_model().exists()
    assert any(task.tunable for task in answer.tasks)


def test_several_sets_of_shapes_are_imported_together(imported):
    answer, job = imported(COMPUTED, 2, 5)
    assert [(entry.name, entry.inputs[0].shape) for entry in answer.entries] == [
        ("batch=2", (2, 3, 4)),
        ("batch=5", (5, 3, 4)),
    ]
    assert answer.inputs == answer.entries[0].inputs
    columns = zip(*(entry.weights for entry in answer.entries), strict=True)
    assert [sum(column) for column in columns] == [task.weight for task in answer.tasks]
    assert all(sum(entry.weights) for entry in answer.entries)
    assert len({task.hash for task in answer.tasks}) == len(answer.tasks) == len(list(job.tasks.iterdir()))
    for index, entry in enumerate(answer.entries):
        graph = onnx.load(job.rewritten_model(index)).graph
        assert tuple(dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim) == entry.inputs[0].shape


def test_a_single_set_of_shapes_is_no_entry(imported):
    answer, _ = imported(PLAIN)
    assert answer.entries == ()


def test_the_same_shapes_twice_are_refused(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(PLAIN.SerializeToString())
    x = InputSpec("x", (2, 3, 4), "")
    shapes = ShapeBinding("by name", (), {"batch": 2}), ShapeBinding("by input", (x,))
    request = ImportRequest(str(path), "llvm", 1, (0,), str(tmp_path / "locks"), shapes, {}, False, None)
    with pytest.raises(ModelError, match="by name and by input give its inputs the same shapes"):
        ingest.run(request, lambda step, waiting=False: None)


def test_a_model_whose_shapes_are_not_fixed_is_refused_when_it_is_submitted(imported):
    target = numpy_helper.from_array(np.array([0, 4]), "shape")
    none = numpy_helper.from_array(np.array([0]), "none")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    nodes = [
        helper.make_node("Slice", ["x", "none", "none"], ["nothing"]),
        helper.make_node("Reshape", ["nothing", "shape"], ["part"], allowzero=1),
        helper.make_node("Concat", ["part", "x"], ["y"], axis=0),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [target, none])
    with pytest.raises(
        ModelError, match=r"cannot import .*model\.onnx: the size of the result of relax\.\w+ depends on the values"
    ):
        imported(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), 4)


def test_a_result_whose_size_depends_on_values_is_refused_with_its_operator(imported):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], axes=[0], keepdims=0),
        helper.make_node("Cast", ["top"], ["sizes"], to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["sizes"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y])
    said = r"the size of the result of relax\.\w+ depends on the values of its inputs; fix an input .* --value"
    with pytest.raises(ModelError, match=said):
        imported(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), 4)


def test_a_plan_is_followed_and_kept(imported):
    plan = Plan(blocks=(Block(operators=("matmul_1",), algorithm="plain"),))
    answer, job = imported(PLAIN, plan=plan)
    assert [task.name for task in answer.tasks if task.tunable] == ["matmul"]
    assert read(job.plan) == plan


def test_a_plan_that_cannot_be_followed_is_no_fault_of_the_model(imported):
    with pytest.raises(
        BadInput, match=r"^the plan cannot be followed: block 1 \(matmul_2\): the model has no operator"
    ):
        imported(PLAIN, plan=Plan(blocks=(Block(operators=("matmul_2",)),)))


def test_how_far_a_model_is_from_itself_is_measured_at_each_set_of_shapes(imported):
    answer, _ = imported(COMPUTED, 2, 5)
    assert len(answer.own_error) == 2 and all(0 < own < 1e-5 for own in answer.own_error)


BIG = numpy_helper.from_array(np.float32(2**22), "big")


def chaotic(*between):
    """Values so large that a last bit is another angle."""
    nodes = [
        helper.make_node("Mul", ["x", "big"], ["wide"]),
        *between,
        helper.make_node("Sin", ["whole" if between else "wide"], ["wave"]),
        helper.make_node("Flatten", ["wave"], ["flat"]),
    ]
    proto = model(nodes)
    proto.graph.initializer.append(BIG)
    return proto


def test_a_model_that_rounds_is_far_from_itself_and_verified_by_its_choices(imported):
    """Values between steps are as likely as others, and a last bit decides which of two steps some of them take."""
    answer, _ = imported(chaotic(helper.make_node("Floor", ["wide"], ["whole"])))
    assert answer.own_error[0] > 0.01
    assert answer.verified_by == ("choices",)


def test_nothing_decides_about_a_model_that_is_far_from_itself_and_chooses_nothing(imported):
    answer, _ = imported(chaotic())
    assert answer.own_error[0] > 0.05
    assert answer.verified_by == ("nothing",) and answer.problem == ""


def test_what_a_runtime_says_of_random_inputs_is_told(imported):
    """No index that is drawn is in the table."""
    nodes = [
        helper.make_node("Cast", ["x"], ["number"], to=TensorProto.INT64),
        helper.make_node("Add", ["number", "far"], ["index"]),
        helper.make_node("Gather", ["table", "index"], ["flat3"]),
        helper.make_node("Flatten", ["flat3"], ["flat"]),
    ]
    proto = model(nodes)
    proto.graph.initializer.append(numpy_helper.from_array(np.int64(1000), "far"))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(8, np.float32), "table"))
    answer, _ = imported(proto)
    assert answer.verified_by == ("nothing",)
    assert answer.problem.startswith("ONNX Runtime cannot run the model as submitted (")
    assert "--inputs FILE.npz" in answer.problem


def test_the_digest_is_of_the_files_as_submitted(imported, tmp_path):
    answer, _ = imported(PLAIN)
    content = (tmp_path / "model.onnx").read_bytes()
    assert answer.digest == digest_of_bytes(content)
    assert answer.digest.sha256 == hashlib.sha256(content).hexdigest()


def test_the_digest_is_also_of_the_files_with_the_weights(tmp_path):
    path = tmp_path / "model.onnx"
    moved = onnx.ModelProto()
    moved.CopyFrom(PLAIN)
    onnx.save(moved, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    (name,) = weight_files(parse_graph(path))
    before = digest_of(path, [name])
    weights = bytearray((tmp_path / "w.bin").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "w.bin").write_bytes(weights)
    assert digest_of(path, [name]) != before and digest_of(path) == digest_of(path)
    assert parse_file(path).graph.node[0].op_type == "Flatten"


def test_a_model_that_changes_while_it_is_read_is_refused(imported, monkeypatch, tmp_path):
    def digest(path, weights):
        path.write_bytes(path.read_bytes() + b"\0")
        return digest_of(path, weights)

    monkeypatch.setattr(submission, "digest_of", digest)
    with pytest.raises(ModelError, match=r"model\.onnx was changed while it was read; submit it again"):
        imported(PLAIN)
