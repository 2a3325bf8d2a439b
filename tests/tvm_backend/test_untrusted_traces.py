"""Traces are data: what would make code of them does not reach TVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import DamagedFile
from autotune.storage.formats import Candidate
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.search.design_space import replay
from autotune.tvm_backend.untrusted_traces import check_trace

DATA = Path(__file__).parents[1] / "data"


def annotating(key: str, value: Any = 1) -> list[Any]:
    return [[["GetSBlock", [], ["B", "main"], ["b0"]], ["Annotate", ["b0", value], [key], []]], []]


class TestTraces:
    def test_a_real_one_is_let_through_until_it_annotates_code(self) -> None:
        (trial,) = TuningLog(DATA / "trials.jsonl").trials()
        check_trace(trial.trace)
        instructions, *rest = trial.trace
        with pytest.raises(ValueError, match=r'no rule annotates \["pragma_import_llvm"\]'):
            check_trace([[*instructions, *annotating("pragma_import_llvm")[0][1:]], *rest])

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("meta_schedule.parallel", 32),
            ("meta_schedule.unroll_explicit", "v5"),
            ("meta_schedule.tiling_structure", '"SSRSRS"'),
            ("pragma_auto_unroll_max_step", 64),
            ("software_pipeline_stage", [0, 0, 1]),
        ],
    )
    def test_what_rules_annotate_is_let_through_and_nothing_that_only_begins_so(self, key: str, value: Any) -> None:
        made = [["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v5"]]]
        check_trace([[*made, *annotating(key, value)[0]], [[0, 1]]])
        with pytest.raises(ValueError, match="no rule annotates"):
            check_trace(annotating(f"{key}!", value))

    @pytest.mark.parametrize("value", [None, 1.5, "x", '"two words"', [1, "v0"], {"a": 1}, "{}", 2**70])
    def test_a_value_that_no_rule_gives_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match="no rule annotates meta_schedule.parallel with"):
            check_trace(annotating("meta_schedule.parallel", value))

    @pytest.mark.parametrize("kind", ["UnsafeSetDType", "UnsafeHideBufferAccess", "unheard of", 3, None, []])
    def test_an_instruction_that_no_rule_makes_is_refused(self, kind: Any) -> None:
        with pytest.raises(ValueError, match="no rule makes the instruction"):
            check_trace([[[kind, [], [], []]], []])

    @pytest.mark.parametrize(
        "instruction",
        [
            ["Split", ["l0", "system", 4], [True, False], ["l1", "l2"]],
            ["Split", [], [True, False], []],
            ["SetScope", ["b0"], [0, "global.texture"], []],
            ["Bind", ["l0"], ["cpuIdx.x"], []],
            ["Tensorize", ["l0"], ["a name; of two", True], []],
            ["GetSBlock", [], ["main(); system", "main"], ["b0"]],
            ["Reorder", [["l0"]], [], []],
        ],
    )
    def test_operands_that_no_rule_gives_are_refused(self, instruction: list[Any]) -> None:
        with pytest.raises(ValueError, match="such operands"):
            check_trace([[instruction], []])

    def test_outputs_are_names(self) -> None:
        with pytest.raises(ValueError, match="are no names"):
            check_trace([[["GetLoops", ["b0"], [], ["l0", {"type": "ffi.Module"}]]], []])

    @pytest.mark.parametrize("decision", [[0, "x"], [0, [0, 4]], [0, [[2]]], [0], 3])
    def test_a_decision_is_a_number_or_the_sizes_of_a_tile(self, decision: Any) -> None:
        with pytest.raises(ValueError, match="no trace"):
            check_trace([[], [decision]])

    @pytest.mark.parametrize(
        ("decisions", "fault"),
        [
            ([[-1, 0], [1, 0], [3, [4, 4]]], "nothing at -1"),  # TVM would read what lies before the instructions
            ([[2**31, 0], [1, 0], [3, [4, 4]]], "nothing at 2147483648"),
            ([[0, 0], [1, 0], [3, [4, 4]]], "GetSBlock at 0"),
            ([[1, 2], [3, [4, 4]]], "does not decide for 2"),
            ([[1, -1], [3, [4, 4]]], "does not decide for -1"),
            ([[1, [1]], [3, [4, 4]]], "does not decide for"),
            ([[1, 0], [3, [4, 4, 1]]], "does not decide for"),
            ([[1, 0], [3, 4]], "does not decide for 4"),
            ([[1, 0]], "nothing decides for the instruction 3"),
        ],
    )
    def test_decisions_are_those_of_its_sampling_instructions(self, decisions: list[Any], fault: str) -> None:
        instructions = [
            ["GetSBlock", [], ["dense", "main"], ["b0"]],
            ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v1"]],
            ["GetLoops", ["b0"], [], ["l2"]],
            ["SamplePerfectTile", ["l2"], [2, 64], ["v3", "v4"]],
        ]
        check_trace([instructions, [[1, 0], [3, [4, 4]]]])
        with pytest.raises(ValueError, match=fault):
            check_trace([instructions, decisions])

    def test_what_nothing_has_made_and_what_is_made_under_another_name_is_refused(self) -> None:
        with pytest.raises(ValueError, match="takes b0, which nothing before it has made"):
            check_trace([[["ComputeInline", ["b0"], [], []]], []])
        with pytest.raises(ValueError, match="outputs of GetSBlock are no names"):
            check_trace([[["GetSBlock", [], ["root", "main"], ["l0"]]], []])

    def test_a_location_is_where_a_block_moves_and_no_loop(self) -> None:
        """TVM takes the mark of a location outside of all loops for a loop, and reads at address 0."""
        location = [["GetSBlock", [], ["dense", "main"], ["b0"]], ["SampleComputeLocation", ["b0"], [], ["l1"]]]
        check_trace([[*location, ["ComputeAt", ["b0", "l1"], [1, -1], []]], [[1, -1]]])
        for misuse in (["Unannotate", ["l1"], ["meta_schedule.parallel"], []], ["Parallel", ["l1"], [], []]):
            with pytest.raises(ValueError, match=f"{misuse[0]} takes l1, which is a location"):
                check_trace([[*location, misuse], [[1, -1]]])

    @pytest.mark.parametrize("key", ["pragma_import_llvm", "pragma_import_c", "meta_schedule.x\n", "pragma_debug", ""])
    def test_other_annotations_are_refused(self, key: str) -> None:
        with pytest.raises(ValueError, match="no rule annotates"):
            check_trace(annotating(key, '"define void @f() { ret void }"'))

    def test_a_pragma_with_code_does_not_get_to_the_build(self) -> None:
        candidate = Candidate("a", annotating("pragma_import_llvm", '"define void @f() { ret void }"'), [])
        with pytest.raises(DamagedFile, match="pragma_import_llvm"):
            replay([candidate], None, None)

    @pytest.mark.parametrize("place", [["TransformLayout", ["b0", "X"], [0, 0], []], ["Split", [], ["X"], []]])
    def test_objects_that_are_code_are_refused(self, place: list[Any]) -> None:
        module = json.dumps({"root_index": 0, "nodes": [{"type": "ffi.Module", "data": {}}]})
        text = json.dumps([[place], []]).replace('"X"', json.dumps(" " + module))
        with pytest.raises(ValueError, match="no rule gives"):
            check_trace(json.loads(text))

    @pytest.mark.parametrize(
        "trace", [None, 3, [], [3], [[[]]], [[["Annotate", [], [], []]]], [[["Annotate", [], None, []]]]]
    )
    def test_what_is_no_trace_is_refused(self, trace: Any) -> None:
        with pytest.raises(ValueError):
            check_trace(trace)


def index_map(*nodes: dict[str, Any], final: list[int]) -> str:
    """An index map of a variable and the expressions that some nodes make. The first of them has the number 5."""
    first = [
        {"type": "None"},
        {"type": "ir.PrimType", "data": {"span": 0, "dtype": "int32"}},
        {"type": "ffi.String", "data": "i"},
        {"type": "ir.Var", "data": {"span": 0, "ty": 1, "name": 2}},
        {"type": "ffi.Array", "data": [3]},
    ]
    indices = {"initial_indices": 4, "final_indices": 5 + len(nodes), "inverse_index_map": 0}
    last = [{"type": "ffi.Array", "data": final}, {"type": "tirx.IndexMap", "data": indices}]
    return json.dumps({"root_index": 6 + len(nodes), "nodes": [*first, *nodes, *last], "metadata": {}})


def number(value: int, at: int) -> list[dict[str, Any]]:
    """An integer, as the nodes `at` and `at + 1`."""
    return [{"type": "int", "data": value}, {"type": "ir.IntImm", "data": {"span": 0, "ty": 1, "value": at}}]


def operation(name: str, a: int, b: int) -> dict[str, Any]:
    return {"type": name, "data": {"span": 0, "ty": 1, "a": a, "b": b}}


def transforming(text: str) -> list[Any]:
    root = ["GetSBlock", [], ["root", "main"], ["b0"]]
    return [[root, ["TransformLayout", ["b0", text], [0, 1, None, True], []]], []]


class TestIndexMaps:
    @pytest.mark.parametrize("name", ["prim.Add", "prim.Sub", "prim.Mul", "prim.FloorDiv", "prim.FloorMod"])
    def test_arithmetic_is_let_through(self, name: str) -> None:
        check_trace(transforming(index_map(*number(4, 5), operation(name, 3, 6), final=[7])))

    @pytest.mark.parametrize(
        "node",
        [
            {"type": "ir.Call", "data": {"span": 0, "ty": 1, "op": 2, "args": 4, "attrs": 0}},
            {"type": "prim.Select", "data": {"span": 0, "ty": 1, "condition": 3, "true_value": 3, "false_value": 3}},
            operation("prim.Div", 3, 3),
            {"type": "ffi.Function", "data": "system"},
            {"type": "ir.Op", "data": "tirx.call_extern"},
            {"type": "ir.Var", "data": {"span": 0, "ty": 1, "name": 2, "more": 0}},
            {"type": "ir.PrimType", "data": {"span": 0, "dtype": "handle"}},
            {"type": "ffi.String", "data": "two words"},
            operation("prim.Add", 3, 2),
            operation("prim.Add", 3, 5),
            operation("prim.Add", 3, -1),
            operation("prim.Add", 3, 3) | {"data": None},
            operation("prim.Add", 3, 3) | {"type": ["prim.Add"]},
            {},
            3,
        ],
    )
    def test_any_other_node_is_refused(self, node: Any) -> None:
        with pytest.raises(ValueError, match="no rule gives TransformLayout"):
            check_trace(transforming(index_map(node, final=[3])))

    @pytest.mark.parametrize("divisor", [0, -4])
    def test_nothing_is_divided_by_less_than_one(self, divisor: int) -> None:
        with pytest.raises(ValueError, match="no rule gives TransformLayout"):
            check_trace(transforming(index_map(*number(divisor, 5), operation("prim.FloorMod", 3, 6), final=[7])))

    def test_nothing_is_divided_by_an_index(self) -> None:
        with pytest.raises(ValueError, match="no rule gives TransformLayout"):
            check_trace(transforming(index_map(operation("prim.FloorDiv", 3, 3), final=[5])))

    @pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"nodes": []}', "[" * 100_000, '{"nodes": [3]}'])
    def test_what_is_no_index_map_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="no rule gives TransformLayout"):
            check_trace(transforming(text))

    @pytest.mark.parametrize("metadata", [True, 3, [[]], ["tvm_version", {}]])
    def test_metadata_that_is_none_is_refused(self, metadata: Any) -> None:
        text = json.dumps(json.loads(index_map(final=[3])) | {"metadata": metadata})
        with pytest.raises(ValueError, match="no rule gives TransformLayout"):
            check_trace(transforming(text))

    def test_constants_beside_the_nodes_are_refused(self) -> None:
        text = index_map(final=[3]).replace('"metadata": {}', '"metadata": {"b64ndarrays": ["AAAA"]}')
        with pytest.raises(ValueError, match="no rule gives TransformLayout"):
            check_trace(transforming(text))

    def test_a_chain_of_products_is_a_divisor_as_often_as_it_is_written_out(self) -> None:
        """Each product is twice the one before it: of sixty, 2^60 factors."""
        check_trace(transforming(doubled("prim.Mul", 4, dividing=True)))
        for depth in (24, 60, 1000):
            with pytest.raises(ValueError, match="no rule gives TransformLayout"):
                check_trace(transforming(doubled("prim.Mul", depth, dividing=True)))

    def test_a_map_is_as_large_as_its_expressions_written_out(self) -> None:
        check_trace(transforming(doubled("prim.Add", 4)))
        for depth in (10, 64, 1000):
            with pytest.raises(ValueError, match="no rule gives TransformLayout"):
                check_trace(transforming(doubled("prim.Add", depth)))

    def test_a_map_goes_from_variables_that_differ(self) -> None:
        for indices in ([3, 3], [6]):
            text = index_map(*number(4, 5), {"type": "ffi.Array", "data": indices}, final=[3])
            graph = json.loads(text)
            graph["nodes"][-1]["data"]["initial_indices"] = 7
            with pytest.raises(ValueError, match="no rule gives TransformLayout"):
                check_trace(transforming(json.dumps(graph)))

    def test_a_key_that_is_there_twice_is_refused_since_readers_differ_in_which_one_they_take(self) -> None:
        twice = index_map(final=[3]).replace('"type": "None"', '"type": "ffi.Function", "type": "None"', 1)
        with pytest.raises(ValueError, match="no rule gives TransformLayout"):
            check_trace(transforming(twice))


def doubled(name: str, depth: int, dividing: bool = False) -> str:
    """An index map of an operation whose operands are the same operation, and so on; it is shared at each level."""
    nodes = number(2, 5)
    nodes += [operation(name, 6 + level, 6 + level) for level in range(depth)]
    if dividing:
        nodes.append(operation("prim.FloorDiv", 3, 6 + depth))
    return index_map(*nodes, final=[4 + len(nodes)])


BLOCK = ["GetSBlock", [], ["dense", "main"], ["b0"]]
LOOPS = ["GetLoops", ["b0"], [], ["l1", "l2"]]


class TestOutputs:
    @pytest.mark.parametrize(
        ("instruction", "fault"),
        [
            (["GetSBlock", [], ["root", "main"], ["b1", "b1", "b1"]], "GetSBlock makes 1 and not 3"),
            (["GetSBlock", [], ["root", "main"], []], "GetSBlock makes 1 and not 0"),
            (["Fuse", ["l1", "l2"], [True], ["l3", "l4"]], "Fuse makes 1 and not 2"),
            (["Split", ["l1", None, 4], [True, True], ["l3"]], "such operands"),
            (["Split", ["l1", "None", 4], [True, True], ["l3"]], "Split makes 2 and not 1"),
            (["SamplePerfectTile", ["l1"], [2, 64], ["v3"]], "SamplePerfectTile makes 2 and not 1"),
            (["ComputeInline", ["b0"], [], ["b1"]], "outputs of ComputeInline are no names"),
        ],
    )
    def test_an_instruction_has_as_many_as_its_kind_makes(self, instruction: list[Any], fault: str) -> None:
        check_trace([[BLOCK, LOOPS], []])
        with pytest.raises(ValueError, match=fault):
            check_trace([[BLOCK, LOOPS, instruction], []])

    @pytest.mark.parametrize("again", [BLOCK, ["GetLoops", ["b0"], [], ["l2"]], ["GetLoops", ["b0"], [], ["l3", "l3"]]])
    def test_a_name_is_made_once(self, again: list[Any]) -> None:
        with pytest.raises(ValueError, match="which is there already"):
            check_trace([[BLOCK, LOOPS, again], []])

    def test_a_nest_has_no_more_loops_than_a_compiler_walks(self) -> None:
        splits = [
            [
                "Split",
                [f"l{1 if level == 0 else 10 * level}", "None", 2],
                [True, True],
                [f"l{10 * level + 9}", f"l{10 * level + 10}"],
            ]
            for level in range(300)
        ]
        check_trace([[BLOCK, LOOPS, *splits[:100]], []])
        with pytest.raises(ValueError, match="a nest of more than 256 loops"):
            check_trace([[BLOCK, LOOPS, *splits], []])

    def test_a_loop_is_split_into_few(self) -> None:
        with pytest.raises(ValueError, match="such operands"):
            check_trace(
                [[BLOCK, LOOPS, ["Split", ["l1", *[1] * 65], [True, True], [f"l{n + 3}" for n in range(65)]]], []]
            )

    def test_a_decision_is_made_once(self) -> None:
        sample = ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v5"]]
        with pytest.raises(ValueError, match="decides twice"):
            check_trace([[sample], [[0, 1], [0, 0]]])

    @pytest.mark.parametrize("name", ["b\u0663", "l\u0661", "v\uff11", "b1\n", "b" + "1" * 10])
    def test_a_name_has_few_digits_of_ascii(self, name: str) -> None:
        kinds = {"b": ["GetSBlock", [], ["root", "main"], [name]], "l": ["GetLoops", ["b0"], [], [name]]}
        sample = ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], [name]]
        with pytest.raises(ValueError, match="are no names"):
            check_trace([[BLOCK, kinds.get(name[0], sample)], []])

    @pytest.mark.parametrize("share", [float("nan"), float("inf")])
    def test_a_probability_is_a_number(self, share: float) -> None:
        with pytest.raises(ValueError, match="such operands"):
            check_trace([[["SampleCategorical", [], [[0, 16], [share, 0.5]], ["v5"]]], [[0, 0]]])

    def test_what_is_nested_too_deeply_to_be_shown_is_refused_in_a_line(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(ValueError, match="such operands: what is no data"):
            check_trace([[["GetSBlock", [], deep, ["b0"]]], []])
