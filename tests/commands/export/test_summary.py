"""What `export` says when it is done."""

from __future__ import annotations

from typing import Any

from autotune.commands.export.summary import report_text


def report(**parts: Any) -> dict[str, Any]:
    """What an export tells of a model that was timed beside ONNX Runtime and untuned, but for some parts."""
    latency = {"untuned_ms": 40.0, "tuned_ms": 8.0, "onnxruntime_ms": 10.0}
    told = {"latency": latency, "share_of_onnxruntime": [0.81, 0.78, 0.85], "processes": 5, "threads": 2}
    return {**told, "largest_relative_error": 1e-7, "target": {"kind": "llvm"}, **parts}


def told(**parts: Any) -> str:
    return report_text(report(**parts), "out")


def test_a_report_compares_with_what_was_timed() -> None:
    text = told(values={"scale": 2.0})
    assert "5.0 times as fast as untuned" in text
    assert "ONNX Runtime      10.000 ms   tuned takes 0.81 of it (0.78 to 0.85 in 5 processes of each)" in text
    assert told(processes=1).splitlines()[2].endswith("tuned takes 0.81 of it (one process of each)")
    lines = told(latency={"tuned_ms": 8.0, "onnxruntime_ms": 10.0}).splitlines()
    assert lines[0] == "       tuned       8.000 ms" and lines[1].startswith("ONNX Runtime")
    latency = {"untuned_ms": 40.0, "tuned_ms": 8.0, "torch_ms": 16.0}
    text = told(latency=latency, reference="torch", share_of_torch=[0.5, 0.4, 0.6], share_of_onnxruntime=None)
    assert "     PyTorch      16.000 ms   tuned takes 0.50 of it (0.40 to 0.60 in 5 processes of each)" in text
    lines = told(latency={}, reference="onnxruntime").splitlines()
    assert lines[0] == "       tuned  not timed: export it without --quick or --frozen to time it"
    assert lines[1].startswith("verified: ")


def test_a_report_says_what_quantising_and_rounding_cost() -> None:
    cost = {"samples": 200, "error": 0.04, "agreement": 0.97}
    text = told(latency={}, reference="onnxruntime", largest_relative_error=0.0, precision="int8", quantisation=cost)
    assert "0, against the model in int8; on 200 calibration samples it differs from the model as submitted by" in text
    assert "and agrees in 97.0% of the top-1 answers; 2 threads each" in text
    text = told(largest_relative_error=8e-3, own_error=9.4e-3)
    assert "which is within 0.0094, twice how far the runtime of the model is from itself" in text


def test_a_report_says_what_loading_takes_and_on_a_gpu_compares_with_nothing_that_ran_elsewhere() -> None:
    parts = {"size_mb": {"model.so": 75.39, "onnx": 46.8}, "load_ms": {"tuned_ms": 12.3, "onnxruntime_ms": 30.0}}
    text = told(**parts, memory_mb={"tuned_ms": 91.2, "onnxruntime_ms": 60.0}, source=True)
    assert "first outputs after 12 ms (30), peak memory 91 MB (60), model.so 75.4 MB (46.8)" in text
    assert text.endswith("wrote out: model.so, report.json, run.py, autotune.lock, cpp/, source/")
    parts |= {"load_ms": {"tuned_ms": 12.3, "onnxruntime_ms": None}, "target": {"kind": "cuda"}}
    parts |= {"latency": {"untuned_ms": 40.0, "tuned_ms": 8.0, "onnxruntime_ms": None}, "share_of_onnxruntime": None}
    text = told(**parts, memory_mb={"tuned_ms": 91.2, "onnxruntime_ms": None})
    assert "5.0 times as fast as untuned" in text and "of it" not in text
    assert "timed on the GPU; ONNX Runtime was not timed there" in text
    assert "first outputs after 12 ms, peak memory 91 MB, model.so 75.4 MB" in text


def slower(more_trials: bool = True) -> dict[str, Any]:
    kernels = [{"name": "conv", "share": 0.31, "of_limit": 0.12}, {"name": "split", "share": 0.05, "of_limit": None}]
    cause = {"than": "onnxruntime", "ratio": 1.25, "kernels": kernels, "between": 0.2, "more_trials": more_trials}
    return {"latency": {"tuned_ms": 12.5, "onnxruntime_ms": 10.0}, "slower": cause}


def test_a_slower_library_says_so_in_the_last_line_with_what_holds_it_back() -> None:
    assert told(**slower()).splitlines()[-1] == (
        "slower than ONNX Runtime, which takes 80% of its time: conv 31% of the time at 12% of what the machine allows,"
        " split 5% of the time; 20% of the time passes between kernels;"
        " more trials may help: submit it with more --trials"
    )
    assert told(**slower(more_trials=False)).endswith("; more trials will not help")


def test_a_report_of_several_shapes_has_each_of_them_and_says_which_is_slower() -> None:
    faster = {**report()["latency"], "tuned_ms": 4.0}
    entries = [report(name="n=8"), report(name="n=16", latency=faster), report(name="n=32", **slower())]
    lines = told(**entries[-1], entries=entries).splitlines()
    assert lines[0] == "n=8" and "5.0 times as fast as untuned" in lines[2]
    assert lines[4] == "n=16" and "10.0 times as fast as untuned" in lines[6]
    assert "\n".join(lines).count("slower than") == 1
