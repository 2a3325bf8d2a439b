"""Programs and traces are data: what would make code of them does not reach TVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import DamagedFile
from autotune.storage.formats import Candidate
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.sanitize import check_graph, check_trace
from autotune.tvm_backend.search.space import replay
from autotune.tvm_backend.search.tasks import read_program

DATA = Path(__file__).parents[1] / "data"


def graph(*types: str) -> str:
    return json.dumps({"root_index": 0, "nodes": [{"type": name, "data": {}} for name in types]})


def annotating(key: str, value: Any = 1) -> list[Any]:
    return [[["GetSBlock", [], ["B", "main"], ["b0"]], ["Annotate", ["b0", value], [key], []]], []]


class TestPrograms:
    def test_a_real_one_is_let_through_until_it_names_code(self) -> None:
        text = (DATA / "task.json").read_text()
        check_graph(text)
        with pytest.raises(ValueError, match=r"ffi\.Module"):
            check_graph(text.replace('"ffi.Map"', '"ffi.Module"', 1))

    @pytest.mark.parametrize(
        "type", ["ffi.Module", "ffi.Function", "ir.EnvFunc", "runtime.Module", "ffi.OpaquePyObject"]
    )
    def test_what_is_code_is_refused(self, type: str) -> None:
        with pytest.raises(ValueError, match=type):
            check_graph(graph("ir.IRModule", type))

    @pytest.mark.parametrize("type", ["ffi.Module", "ffi.Function"])
    def test_it_is_refused_before_it_is_read(self, type: str, tmp_path: Path) -> None:
        path = tmp_path / "000.json"
        path.write_text(graph(type))
        with pytest.raises(DamagedFile, match=f"a program has no {type}"):
            read_program(path, "0" * 16)

    @pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"nodes": 3}', '{"nodes": [3]}', "[" * 100_000])
    def test_what_is_no_program_is_refused(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "000.json").write_text(text)
        with pytest.raises(DamagedFile):
            read_program(tmp_path / "000.json", "0" * 16)

    def test_another_program_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "000.json").write_text((DATA / "task.json").read_text())
        with pytest.raises(DamagedFile, match="another program"):
            read_program(tmp_path / "000.json", "0" * 16)


class TestTraces:
    def test_a_real_one_is_let_through_until_it_annotates_code(self) -> None:
        (trial,) = TuningLog(DATA / "trials.jsonl").trials()
        check_trace(trial.trace)
        instructions, *rest = trial.trace
        with pytest.raises(ValueError, match="no rule annotates 'pragma_import_llvm'"):
            check_trace([[*instructions, *annotating("pragma_import_llvm")[0]], *rest])

    @pytest.mark.parametrize(
        "key", ["meta_schedule.parallel", "pragma_auto_unroll_max_step", "software_pipeline_stage"]
    )
    def test_what_rules_annotate_is_let_through_and_nothing_that_only_begins_so(self, key: str) -> None:
        check_trace(annotating(key))
        with pytest.raises(ValueError, match="no rule annotates"):
            check_trace(annotating(f"{key}!"))

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
        text = json.dumps([[place], []]).replace('"X"', json.dumps(" " + graph("ffi.Module")))
        with pytest.raises(ValueError, match=r"ffi\.Module"):
            check_trace(json.loads(text))

    @pytest.mark.parametrize(
        "trace", [None, 3, [], [3], [[[]]], [[["Annotate", [], [], []]]], [[["Annotate", [], None, []]]]]
    )
    def test_what_is_no_trace_is_refused(self, trace: Any) -> None:
        with pytest.raises(ValueError):
            check_trace(trace)
