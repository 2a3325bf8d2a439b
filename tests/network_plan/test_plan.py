"""A plan is written as TOML and read back, what is wrong with one is named, and two are compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import ConfigError, DiskProblem
from autotune.network_plan.plan import Block, BlockFacts, Memory, Plan, PlanFacts, TensorFacts, differences, read, text

IMAGE = TensorFacts("buffer0", "float32", (1, 2, 8, 8, 16), "NCHW16c", 8192, 64)
SCALAR = TensorFacts("buffer1", "int64", bytes=8)
FACTS = BlockFacts(kernel="fused_conv2d_relu", task="conv2d_relu", best_us=12.5, writes=(IMAGE, SCALAR))
FIRST = Block(operators=("conv2d_1", "relu_1"), algorithm="direct", layout="NCHW16c", threads=2, facts=FACTS)
PLAN = Plan(
    facts=PlanFacts(model='net "a".onnx', threads=2, memory=Memory(8192, 8192, 9000, 64)),
    blocks=(FIRST, Block(operators=("softmax_1",)), Block(operators=("mean_1",), beside=True)),
)


@pytest.fixture
def written(tmp_path: Path):
    """Writes the file of a plan."""

    def write(content: str) -> Path:
        path = tmp_path / "plan.toml"
        path.write_text(content)
        return path

    return write


def test_a_plan_is_read_as_it_was_written_but_for_one_of_a_later_format(written) -> None:
    assert read(written(text(PLAN))) == PLAN
    with pytest.raises(ConfigError, match="plan.toml:1: the plan has format 3; this autotune reads format 2"):
        read(written("format = 3\n"))


def test_the_decisions_of_a_plan_are_without_its_facts() -> None:
    decisions = PLAN.decisions()
    assert decisions.facts is None
    assert decisions.blocks == (replace(FIRST, facts=None), *PLAN.blocks[1:])


@pytest.mark.parametrize(
    ("block", "line", "message"),
    [
        ('operators = ["a_1"]\nthreads = 0', 4, "'threads' in [blocks] must be at least 1, not 0"),
        (
            'operators = ["a_1"]\nalgorithm = "fft"',
            4,
            "must be one of direct, rows, winograd-2x2, winograd-4x4, packed, plain, not 'fft'",
        ),
        (
            'operators = ["a_1"]\ncores = 2',
            4,
            "unknown key 'cores' in [blocks]; there are operators, algorithm, layout, threads",
        ),
        ('operators = ["a_1"]\nlayout = "NCHW33c"', 4, "'layout' in [blocks] must be a layout such as NCHW16c"),
        ('operators = ["a_1"]\nbeside = true', 4, "block 1 has `beside`, but no block is before it"),
        ("operators = []", 3, "block 1 has no operators; leave it out"),
        ('operators = ["a_1", "b_1", "a_1"]', 3, "block 1 (a_1 + b_1 + a_1): a_1 is in 2 places; leave one"),
        ("threads = 1", 2, "'blocks[0].operators' is missing"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(written, block: str, line: int, message: str) -> None:
    path = written(f"format = 2\n[[blocks]]\n{block}\n")
    with pytest.raises(ConfigError) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}:{line}: ")
    assert message in str(raised.value)


def test_plans_with_their_blocks_in_another_order_differ_and_equal_ones_do_not() -> None:
    assert list(differences(PLAN, PLAN)) == []
    first, second, third = PLAN.blocks
    (one,) = differences(PLAN, replace(PLAN, blocks=(second, first, third)))
    assert one == "order: the first runs conv2d_1 + relu_1 where the second runs softmax_1"


def test_differences_are_told_block_by_block() -> None:
    faster = replace(FIRST, algorithm="winograd-4x4", threads=1, facts=replace(FACTS, best_us=10.0))
    blocks = (Block(operators=("softmax_2",)), faster, Block(operators=("mean_1",)))
    other = replace(PLAN, facts=PlanFacts(memory=Memory(4096, 8192, 9000, 64)), blocks=blocks)
    assert list(differences(PLAN, other)) == [
        "memory: arena: 8192 -> 4096",
        "only in the first: softmax_1",
        "only in the second: softmax_2",
        "conv2d_1 + relu_1: algorithm: direct -> winograd-4x4",
        "conv2d_1 + relu_1: threads: 2 -> 1",
        "conv2d_1 + relu_1: best_us: 12.5 -> 10",
        "mean_1: beside: true -> false",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("threads = -7", "unknown key 'threads' in the plan; there are format, facts, blocks"),
        ('model = "net"', "unknown key 'model' in the plan"),
        ("memory = { arena = 1 }", "unknown key 'memory' in the plan"),
    ],
)
def test_a_fact_stands_under_facts(written, line: str, message: str) -> None:
    path = written(f"format = 2\n{line}\n")
    with pytest.raises(ConfigError) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}:2: {message}")


def test_a_layout_has_digits_of_ascii(written) -> None:
    with pytest.raises(ConfigError, match="'layout' in \\[blocks\\] must be a layout such as NCHW16c"):
        read(written('[[blocks]]\noperators = ["a_1"]\nlayout = "NCHW1\u0662c"\n'))


def test_a_plan_larger_than_that_of_any_network_is_refused(written) -> None:
    many = "".join(f'[[blocks]]\noperators = ["a_{number}"]\n' for number in range(20_001))
    path = written(many)
    with pytest.raises(ConfigError) as raised:
        read(path)
    assert str(raised.value) == f"{path}:1: the plan has 20001 blocks; a network has at most 20000"
    with pytest.raises(DiskProblem, match="it is larger than 2 MiB, and none of its kind is"):
        read(written(many * 20))


def test_what_is_wrong_at_the_end_of_a_long_plan_is_named(written) -> None:
    """Its lines are read once: with each line, all before it were read again."""
    blocks = [replace(FIRST, operators=(f"a_{number}",)) for number in range(2000)]
    content = text(Plan(blocks=tuple(blocks)))
    path = written(f'{content}[[blocks]]\noperators = ["z_1"]\nthreads = 0\n')
    with pytest.raises(ConfigError) as raised:
        read(path)
    assert str(raised.value).startswith(
        f"{path}:{content.count(chr(10)) + 3}: 'threads' in [blocks] must be at least 1"
    )


def test_the_facts_of_a_plan_of_format_1_stood_at_its_top(written) -> None:
    memory = "[memory]\narena = 1\nlibrary = 2\nsum = 3\nleast = 4\n"
    plan = read(written(f'format = 1\nmodel = "net.onnx"\nthreads = 2\n{memory}[[blocks]]\noperators = ["a_1"]\n'))
    assert plan.facts == PlanFacts(model="net.onnx", threads=2, memory=Memory(1, 2, 3, 4))
    assert [block.operators for block in plan.blocks] == [("a_1",)]
    assert "format = 2" in text(plan) and "[facts]" in text(plan)
