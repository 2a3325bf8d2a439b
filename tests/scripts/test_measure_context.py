"""scripts/bench/measure_context: what the times of kernels say of the time of their model."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace

from autotune.storage.formats import Trial

TASKS = [SimpleNamespace(name=name, hash=name, weight=weight) for name, weight in (("conv", 2), ("dense", 1))]
SPEC = SimpleNamespace(tasks=[*TASKS, SimpleNamespace(name="copy", hash="copy", weight=5)])
TRIALS = {task.hash: Trial(f"of-{task.hash}", [], [], (1.0,), None, "j", 0, 0.0) for task in TASKS}
TIMES = {"of-conv": 10.0, "of-dense": 30.0}


def test_a_sum_has_each_kernel_as_often_as_the_model_calls_it(load_script: Callable[[str], ModuleType]) -> None:
    draw = load_script("measure_context").Draw(TRIALS, 1.0, ())
    assert draw.sum_us(SPEC, TIMES) == 2 * 10.0 + 30.0


def test_a_kernel_is_close_if_it_takes_as_long_in_the_model_and_small_ones_do_not_count(
    load_script: Callable[[str], ModuleType],
) -> None:
    script = load_script("measure_context")
    conv, dense, other = (
        SimpleNamespace(name=name, calls=calls, us=us)
        for name, calls, us in (("fused_conv", 2, 18.0), ("dense", 1, 40.0), ("copy", 5, 900.0))
    )
    assert script.close_kernels(SPEC, script.Draw(TRIALS, 1.0, [conv, dense, other]), TIMES) == (0, 1)
    assert script.close_kernels(SPEC, script.Draw(TRIALS, 1.0, [conv, dense]), TIMES) == (1, 2)
