"""What an export measured stays with its job."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.commands.references import KernelLimit, recall, remember
from autotune.errors import NewerFormat
from autotune.storage.paths import JobPaths

REPORT: dict[str, Any] = {"latency": {"tuned_ms": 2.0, "openvino_ms": 3.0}, "threads": 4, "exported_at": 5.0}


def test_an_export_is_recalled_by_the_names_that_people_know(tuned: JobPaths) -> None:
    remember(tuned, REPORT)
    references = recall(tuned)
    assert references is not None and references.named == {"exported library": 2.0, "OpenVINO": 3.0}
    assert (references.threads, references.exported_at, references.untuned_ms) == (4, 5.0, None)


def test_of_no_export_and_of_a_damaged_file_nothing_is_recalled_and_a_newer_one_is_an_error(tuned: JobPaths) -> None:
    tuned.exported.write_text("?")
    assert recall(tuned) is None
    tuned.exported.unlink()
    assert recall(tuned) is None
    tuned.exported.write_text('{"format": "autotune-exported", "version": 2}')
    with pytest.raises(NewerFormat):
        recall(tuned)


def test_the_kernels_of_the_export_come_with_what_the_machine_allows(tuned: JobPaths) -> None:
    kernel = {"name": "fused_conv", "task": "conv", "calls": 2, "us": 100.0, "gflop": 0.005, "bytes": 10**6}
    limits = {"gflops": 200.0, "gb_per_s": 40.0, "ring_bytes": 10**7}
    allowed = {"least_us": 50.0, "bound": "bandwidth", "streamed": 10**6}
    outside = {**kernel, "name": "reshape", "task": None, "us": 25.0, "least_us": None}
    remember(tuned, {**REPORT, "kernels": [{**kernel, **allowed}, outside], "roofline": limits})
    references = recall(tuned)
    assert references is not None and references.limits is not None
    assert (references.kernels[0].gflops, references.kernels[0].gb_per_s) == (100.0, 20.0)
    assert references.limits.gflops == 200.0
    assert references.limits_of_tasks() == {"conv": KernelLimit(25.0, "bandwidth")}
    assert references.limits_of_tasks()["conv"].reached(50.0) == "50% bandwidth"
    assert "2 kernels take 0.125 ms together, 20% of it outside of tasks" in references.kernels_text()
    assert "reads the 10 MB of constants at 40 GB/s, which together allow 0.05 ms" in references.kernels_text()


def test_a_kernel_whose_work_depends_on_values_has_no_speed(tuned: JobPaths) -> None:
    unknown = dict.fromkeys(("gflop", "bytes", "streamed", "least_us", "bound"))
    remember(tuned, {**REPORT, "kernels": [{"name": "attend", "task": None, "calls": 2, "us": 100.0, **unknown}]})
    references = recall(tuned)
    assert references is not None
    assert (references.kernels[0].gflops, references.kernels[0].gb_per_s) == (None, None)
    assert references.kernels_text().endswith("attend takes most: 100%.")


def test_an_export_of_before_bounds_were_known_is_still_read(tuned: JobPaths) -> None:
    kernel = {"name": "fused_conv", "task": "conv", "calls": 1, "us": 100.0, "gflop": 0.005, "bytes": 10**6}
    limits = {"gflops": 200.0, "gb_per_s": 40.0}
    remember(tuned, {**REPORT, "kernels": [{**kernel, "least_us": 50.0}], "roofline": limits})
    references = recall(tuned)
    assert references is not None and references.limits_of_tasks()["conv"].reached(100.0) == "50%"


def test_a_latency_at_several_shapes_is_one_run_at_each_of_them(tuned: JobPaths) -> None:
    latencies = {"n=8": {"tuned_ms": 2.0, "onnxruntime_ms": 3.0}, "n=16": {"tuned_ms": 5.0, "onnxruntime_ms": 4.0}}
    entries = [{"name": name, "latency": latency} for name, latency in latencies.items()]
    remember(tuned, {**REPORT, "entries": entries})
    references = recall(tuned)
    assert references is not None and references.named == {"exported library": 7.0, "ONNX Runtime": 7.0}
    assert references.entries_ms == {
        "n=8": {"tuned": 2.0, "ONNX Runtime": 3.0},
        "n=16": {"tuned": 5.0, "ONNX Runtime": 4.0},
    }
