"""What it takes to run the commands of each page: files, smaller budgets, and which commands other tests run.

A key of `changes` or `elsewhere` is the beginning of a command line of the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Guide:
    """How the commands of a page are run.

    Attributes:
        page: The page.
        copies: ONNX files that the page names and that are copies of a small multilayer perceptron.
        shapes: ONNX files that are made for the page, with the shapes of their inputs; a size may be a name.
        names: What is replaced in all command lines.
        changes: What is run for a command line; `{}` is the line itself.
        elsewhere: The reasons why command lines are not run here.
        tuned: Whether the workspace is a copy of the one with the tuned job `tiny_cnn`.
        slow: Whether it takes more than some seconds.
    """

    page: str
    copies: tuple[str, ...] = ()
    shapes: Mapping[str, Mapping[str, Shape]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    tuned: bool = False
    slow: bool = False


_AS_USUAL = "getting started runs it on another job"
_INSTALLS = "scripts/setup.sh and scripts/release/check_release.sh install"
_STOPPED = "{}; autotune daemon stop"
_UNTIL_DONE = "{}; autotune wait all --timeout 300; autotune daemon stop"
_SERVED = "for i in $(seq 200); do autotune daemon status > served && break; sleep 0.1; done"
_FOREGROUND = f"{{}} & {_SERVED}; autotune daemon stop; wait $! || test $? = 143"
_CRON = '{}; grep -q "^0 22 .* daemon run --window 22:00-07:00 --until 07:00" "$TOOLS/table"'
_FEW = "{} --trials 2"
_NODE = (  # the ports of workers are fixed otherwise, and nodes of one machine would contend for them
    "{{}} --block --num-cpus 2 --min-worker-port 0 --max-worker-port 0 {more} > {name}.log 2>&1 &"
    " for i in $(seq 300); do grep -q 'runtime started' {name}.log && break; sleep 0.2; done;"
    " grep 'runtime started' {name}.log || {{ cat {name}.log; false; }}"
)
_MINILM = {"minilm.onnx": {"input_ids": ("batch", "sequence"), "attention_mask": ("batch", "sequence")}}

GUIDES = (
    Guide(
        "README.md",
        copies=("mobilenet_v2.onnx", "resnet18.onnx", "bert.onnx", "vgg16.onnx"),
        changes={
            "autotune demo": "mkdir autotune-demo; cp autotune.toml autotune-demo; {} --trials 2",
            "python -c": "mkdir made && cd made; {}; test -s samples.npz; cd ..",
            "autotune submit resnet18.onnx --precision int8": _FEW,
            "autotune submit bert.onnx": _FEW,
            "autotune submit model.gguf": _FEW,
            "autotune plan mobilenet_v2": "autotune submit mobilenet_v2.onnx --trials 2"
            "; autotune daemon run --drain; {}",
            "autotune submit mobilenet_v2.onnx --": _FEW,
            "autotune trials export": "{}; test -s trials.gz",
            "autotune trials import": 'mkdir second; AUTOTUNE_WORKSPACE="$PWD/second" {}',
            "autotune report": "{}; test -s report.html; rm report.html",
        },
        elsewhere={
            "python3 -m venv": _INSTALLS,
            "pip install": _INSTALLS,
            "autotune submit mobilenet_v2.onnx --within": "getting started begins with it",
            "autotune export mobilenet_v2": "getting started begins with it",
            "python lib/run.py": "getting started begins with it",
        },
        slow=True,
    ),
    Guide(
        "docs/guides/queue.md",
        copies=("resnet18.onnx", "bert.onnx"),
        changes={
            "autotune submit resnet18.onnx --dry-run": "{}",
            "autotune submit": _FEW,
            "autotune daemon start": _UNTIL_DONE,
            "autotune daemon run --drain": "{}",
            "autotune daemon run": _FOREGROUND,
            "autotune status --watch": 'timeout --signal INT 2 "$TOOLS/autotune" status --watch || test $? = 124',
            "autotune hold": "autotune clean --finished; autotune submit resnet18.onnx --trials 4; {}",
            "autotune daemon stop": "autotune daemon start; autotune wait all || test $? = 1; {}",
            "autotune daemon uninstall cron": "{} || test $? = 2",  # where nothing was installed
            "autotune wait": "autotune clean --finished; autotune submit resnet18.onnx --trials 2;"
            " autotune daemon start; {}; autotune daemon stop",
            "job=$(autotune submit": 'job=$(autotune submit resnet18.onnx --trials 2 --quiet); test "$job" = 7',
        },
        elsewhere={"autotune export resnet18": _AS_USUAL, "python lib/run.py": _AS_USUAL},
        slow=True,
    ),
    Guide(
        "docs/guides/models.md",
        copies=("model.onnx",),
        shapes={
            **_MINILM,
            "detector.onnx": {"images": ("batch", 3, "height", "width")},
            "silero_vad.onnx": {"input": ("batch", 576), "state": (2, "batch", 128), "sr": ()},
        },
        elsewhere={
            "autotune submit model.pt2": "test_pytorch.py submits such a file",
            "autotune submit hand_landmark.tflite": "test_tflite.py submits such a file",
            "autotune export minilm": "the slow run of the guide to shapes exports with inputs of its own",
        },
        slow=True,
    ),
    Guide("docs/guides/language-models.md", changes={"autotune submit": _FEW}, slow=True),
    Guide("docs/guides/precision.md", copies=("resnet18.onnx",), slow=True),
    Guide(
        "docs/guides/shapes.md",
        shapes={**_MINILM, "resnet50.onnx": {"x": ("batch", 3, 224, 224)}},
        changes={"autotune submit resnet50.onnx": "{}; autotune export minilm --output lib --inputs examples.npz"},
        slow=True,
    ),
    Guide(
        "docs/guides/budgets.md",
        copies=("vgg16.onnx", "resnet18.onnx"),
        elsewhere={"autotune status mlp": "tests/commands/test_status.py shows such a job"},
        slow=True,
    ),
    Guide(
        "docs/guides/nights.md",
        changes={
            "autotune daemon install cron --window 22:00-07:00 --write": _CRON,
            "autotune daemon install cron": '{}; ! test -e "$TOOLS/table"',
            "autotune daemon uninstall": '{}; ! grep -q autotune "$TOOLS/table"',
            "autotune daemon start": _STOPPED,
        },
        tuned=True,
    ),
    Guide(
        "docs/guides/gpus.md",
        copies=("bert.onnx", "resnet18.onnx"),
        changes={"autotune doctor": "{} || test $? = 1", "autotune submit": _FEW, "autotune daemon start": _STOPPED},
        elsewhere={"pip install": _INSTALLS, "python scripts/gpu/bench_gpu.py": "it needs a GPU"},
        slow=True,
    ),
    Guide(
        "docs/guides/sharing.md",
        changes={
            "autotune trials export trials.gz 3 resnet18": "autotune trials export trials.gz 1 tiny_cnn",
            "autotune trials import": 'mkdir second third; AUTOTUNE_WORKSPACE="$PWD/second" {}',
            "autotune trials merge": 'AUTOTUNE_WORKSPACE="$PWD/third" autotune trials merge "$PWD"',
        },
        elsewhere={
            "autotune retry vgg16 --here": "tests/faults/test_machine.py runs it",
            "git pull": "there is no newer version",
            "pip install": _INSTALLS,
        },
        tuned=True,
    ),
    Guide(
        "docs/guides/cpp.md",
        names={"resnet18": "tiny_cnn"},
        tuned=True,
        slow=True,
    ),
    Guide(
        "docs/guides/onnxruntime.md",
        names={"resnet18": "tiny_cnn"},
        changes={"autotune export resnet18": 'XDG_DATA_HOME="$PWD/data" {}; test -s data/autotune/libraries/*.json'},
        tuned=True,
        slow=True,
    ),
    Guide(
        "docs/guides/source.md",
        changes={
            "cmake": "autotune export tiny_cnn --output lib/ --source; {}",
            "build/main --repeat 100 input.bin": "head -c $((4 * 3 * 16 * 16)) /dev/zero > input.bin; {}",
        },
        tuned=True,
        slow=True,
    ),
    Guide(
        "docs/guides/plan.md",
        names={"resnet18.onnx": "jobs/*-tiny_cnn/model.onnx", "resnet18": "tiny_cnn"},
        changes={"autotune plan --diff": "{} || test $? = 1"},
        tuned=True,
        slow=True,
    ),
    Guide(
        "docs/guides/cluster.md",
        copies=("model.onnx",),
        changes={
            "ray start --head": _NODE.format(name="head", more="--include-dashboard=false"),
            "ray start --address": _NODE.format(name="node", more="")
            + "; autotune submit model.onnx --trials 2; autotune daemon start; autotune wait all --timeout 120"
            "; autotune status; autotune logs model | grep ', node '; autotune daemon stop",
        },
        elsewhere={"pip install": _INSTALLS},
        slow=True,
    ),
    Guide(
        "docs/guides/boards.md",
        copies=("model.onnx",),
        changes={
            "python -m tvm.exec.rpc_tracker": "{} --port-end 65535 > tracker.log 2>&1 &",
            "python board_server.py": 'cp "$SCRIPTS/../autotune/tvm_backend/board_server.py" .; {} > server.log 2>&1 &'
            " sleep 5; autotune doctor",
            "autotune submit": _FEW,
            "autotune daemon start": _UNTIL_DONE,
        },
        elsewhere={"ssh": "it needs a second machine"},
        slow=True,
    ),
    Guide(
        "docs/guides/sweeps.md",
        copies=("resnet18.onnx",),
        shapes={"mobilenet.onnx": {"x": ("batch", 3, "height", "width")}},
        changes={
            "autotune sweep suite.toml --dry-run": '{} 2>&1 | grep "^12 points"',
            "autotune sweep suite.toml --html": "{}; test -s sweep.html",
            "autotune sweep suite.toml": 'sed -i "s/^seeds.*/seeds = [0]/; s/^trials.*/trials = [2]/" suite.toml; {}',
        },
        slow=True,
    ),
    Guide(
        "docs/guides/simulate.md",
        changes={"autotune simulate scenario.toml --policy": "{}; test -s chart.html"},
    ),
    Guide(
        "docs/guides/commands.md",
        changes={
            "cd examples/matmul": 'cp "$SCRIPTS"/../examples/matmul/* .',
            "cd examples/sqlite": 'cp "$SCRIPTS"/../examples/sqlite/* .',
            "autotune submit matmul.toml": "{} --trials 4",
            "autotune export": "{}; best/build.sh && best/measure.sh",
        },
        slow=True,
    ),
    Guide(
        "docs/guides/kernel-tuner.md",
        changes={"autotune submit": 'cp "$SCRIPTS"/../examples/vector_add/* .; {}'},
    ),
    Guide(
        "docs/guides/own-strategy.md",
        copies=("resnet18.onnx",),
        changes={"autotune submit": "{} --sampler adaptive; python -m pytest -q -p no:cacheprovider test_hill.py"},
    ),
    Guide(
        "docs/guides/troubleshooting.md",
        changes={"autotune doctor": "{} || test $? = 1"},
        tuned=True,
        slow=True,
    ),
)
