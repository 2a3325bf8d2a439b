"""A GGUF file becomes a job, and its export writes the tokens that NumPy chooses from the same weights."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune.errors import BadInput
from autotune.tvm_backend.models.gguf.network import read_network
from autotune.tvm_backend.models.gguf.plain_text import english, tokens_of
from autotune.tvm_backend.models.gguf.reference import DecoderReference, empty_cache

from ..gguf_files import VOCABULARY, decoder
from .conftest import MadeOnce, User, make_user

CONTEXT = 64
IDS = [7, 3, 11, 200, 5]
END = VOCABULARY - 1


@pytest.fixture(scope="module")
def made(made_once: MadeOnce) -> Path:
    """A workspace with a decoder, its file `small.gguf`, and what an export wrote in `lib` and said in `said.txt`."""

    def make(root: Path) -> None:
        user = make_user(root)
        decoder("llama", layers=1).write(root / "small.gguf")
        few = ("--trials", 2, "--trials-per-round", 2)
        user.ok("submit", root / "small.gguf", "--context", CONTEXT, *few)
        user.ok("daemon", "run", "--drain")
        (root / "said.txt").write_text(user.ok("export", 1, "--output", root / "lib"))

    return made_once("language_model", make)


@pytest.fixture(scope="module")
def model(made: Path) -> Any:
    return autotune.load(made / "lib")


def expected(made: Path, ids: list[int], count: int) -> list[int]:
    """The tokens that NumPy chooses, up to the one that ends the text."""
    network = read_network(made / "small.gguf")
    reference = DecoderReference(network)
    cache = empty_cache(network.sizes, CONTEXT)
    tokens: list[int] = []
    while len(tokens) < count:
        given = np.asarray(tokens[-1:] or ids, np.int64)
        past = len(ids) + len(tokens) - 1 if tokens else 0
        tokens.append(int(reference.logits(given, past, *cache)[0].argmax()))
    return tokens[: tokens.index(END)] if END in tokens else tokens


def test_a_job_has_an_entry_for_each_number_of_tokens_and_tunes_products(made: Path) -> None:
    (paths,) = User(made).root.glob("jobs/0001-*")
    spec = json.loads((paths / "spec.json").read_text())
    assert [entry["name"] for entry in spec["entries"]] == ["decode", "prefill_16", "prefill_64"]
    assert sum(User(made).trials().values()) == 2


def test_it_writes_the_tokens_that_numpy_chooses(made: Path, model: Any) -> None:
    rng = np.random.default_rng(2)
    prompts = [[int(token) for token in rng.integers(0, END, size)] for size in (1, 5, 17, 30, 40)]
    written = [list(model.generate(prompt, max_tokens=16)) for prompt in prompts]
    assert written == [expected(made, prompt, 16) for prompt in prompts]
    assert max(map(len, written)) == 16


def test_a_text_ends_with_the_token_that_ends_it(made: Path, model: Any) -> None:
    first = expected(made, IDS, 24)
    assert len(first) < 24
    assert list(model.generate(IDS, max_tokens=24)) == first


def test_drawn_tokens_are_those_of_the_seed(model: Any) -> None:
    def drawn(seed: int) -> list[int]:
        return list(model.generate(IDS, max_tokens=12, temperature=1e3, top_k=50, top_p=0.95, seed=seed))

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(6)}) > 1


def test_a_state_reads_in_any_parts(model: Any) -> None:
    at_once = model.state()
    right = at_once.step([*IDS, *range(30)])
    in_parts = model.state()
    in_parts.step(IDS)
    in_parts.step(list(range(29)))
    logits = in_parts.step([29])
    assert at_once.length == in_parts.length == len(IDS) + 30
    np.testing.assert_allclose(logits, right, atol=1e-4 * np.abs(right).max())


def test_an_export_says_what_bits_cost_beside_how_fast_it_is(made: Path) -> None:
    said = (made / "said.txt").read_text()
    told = json.loads((made / "lib" / "report.json").read_text())["language"]
    network = read_network(made / "small.gguf")
    ids = tokens_of(network.file, english()) or []
    reference = DecoderReference(network)
    cache = empty_cache(network.sizes, CONTEXT)
    surprises = []
    for past, (token, following) in enumerate(itertools.pairwise(ids[:CONTEXT])):
        (logits,) = reference.logits(np.array([token]), past, *cache).astype(np.float64)
        surprises.append(np.log(np.exp(logits).sum()) - logits[following])
    right = np.exp(np.mean(surprises))
    costs = told["perplexity"]
    assert costs == {"tokens": CONTEXT, "library": pytest.approx(right, 1e-3), "in_float32": pytest.approx(right, 1e-4)}
    assert f"the perplexity of {CONTEXT} tokens of English is {costs['library']:.4g}" in said
    (job,) = json.loads(User(made).ok("report", 1, "--json"))["jobs"]
    assert job["references"]["language"]["perplexity"] == costs["library"]
    assert job["references"]["language"]["written_per_s"] == told["written_per_s"] > 0


def test_states_do_not_see_each_other(model: Any) -> None:
    one, other = model.state(), model.state()
    first = one.step(IDS)
    other.step([1, 2, 3])
    one.reset()
    other.step([4])
    np.testing.assert_array_equal(one.step(IDS), first)


def test_a_full_context_says_so_and_changes_nothing(model: Any) -> None:
    state = model.state()
    state.step(list(range(CONTEXT - 1)))
    copy = model.state()
    copy.step(list(range(CONTEXT - 1)))
    with pytest.raises(BadInput, match="the context is full: it has room for 64 tokens, 63 are kept, and 2 more"):
        state.step([1, 2])
    assert state.length == CONTEXT - 1
    np.testing.assert_array_equal(state.step([9]), copy.step([9]))
    with pytest.raises(BadInput, match="the context is full"):
        state.step([1])


@pytest.mark.parametrize("wrong", [-1, VOCABULARY, 1 << 60])
def test_a_token_that_does_not_exist_is_refused(model: Any, wrong: int) -> None:
    with pytest.raises(BadInput, match=f"there is no token {wrong}; the model has 256"):
        model.state().step([1, wrong])


def test_the_library_takes_arrays_too_and_guards_its_cache(made: Path) -> None:
    plain = autotune.Exported.open(made / "lib").load()
    inputs = {name: np.zeros(shape, dtype) for name, (shape, dtype) in plain.entries["decode"].items()}
    assert plain(**inputs).shape == (1, VOCABULARY)
    with pytest.raises(BadInput, match="'past' has the index 64; its table has 64 rows"):
        plain(**{**inputs, "past": np.array([CONTEXT], np.int32)})


def script(made: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(made / "lib" / "run.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_the_script_writes_tokens(made: Path) -> None:
    done = script(made, "--ids", ",".join(map(str, IDS)), "--max-tokens", "12")
    assert [int(word) for word in done.stdout.split()] == expected(made, IDS, 12)
    assert "5 tokens read, the first one written after" in done.stderr
    assert "tokens a second" in done.stderr


def test_the_script_reads_and_writes_text_with_the_tokenizer_of_the_file(made: Path) -> None:
    values = decoder("llama", layers=1).values
    words = values["tokenizer.ggml.tokens"]
    told = expected(made, [words.index(letter) for letter in "Once"], 4)
    done = script(made, "--prompt", "Once", "--max-tokens", "4")
    visible = {byte: chr(byte) for byte in [*range(33, 127), *range(161, 173), *range(174, 256)]}
    hidden = iter(range(256, 512))
    letters = {visible.get(byte) or chr(next(hidden)): byte for byte in range(256)}
    text = bytes(letters[words[token]] for token in told).decode(errors="replace")
    assert (done.returncode, done.stdout) == (0, text + "\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--ids", "1,999"), "run.py: there is no token 999; the model has 256, counted from 0"),
        (("--ids", "1,x"), "run.py: invalid literal"),
        (("--ids", "1", "--temperature", "-1"), "run.py: temperature is -1.0; give 0 or more"),
        (("--ids", "1", "--max-tokens", "80"), "run.py: the context is full"),
    ],
)
def test_the_script_says_what_is_wrong_in_one_line(made: Path, words: tuple[str, ...], reason: str) -> None:
    done = script(made, *words)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(reason)
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def write(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built program that writes tokens."""
    build = tmp_path_factory.mktemp("program")
    (build / "model.so").symlink_to(made / "lib" / "model.so")
    site = sysconfig.get_path("purelib")
    sides = [f"{site}/tvm/lib", f"{site}/tvm_ffi/lib"]
    libraries = [
        f"{sides[0]}/libtvm_runtime.so",
        f"{sides[1]}/libtvm_ffi.so",
        *(f"-Wl,-rpath,{side}" for side in sides),
    ]
    source = made / "lib" / "cpp" / "write.cc"
    command = ["g++", "-std=c++17", "-O1", f"-I{site}/tvm_ffi/include", source, "-o", build / "write"]
    subprocess.run([*command, "-Wl,--no-as-needed", *libraries], check=True, capture_output=True)
    return build / "write"


def test_the_cpp_program_writes_tokens(made: Path, write: Path) -> None:
    for ids in (IDS, list(range(1, 41))):
        done = subprocess.run([write, ",".join(map(str, ids)), "12"], capture_output=True, text=True, timeout=240)
        assert [int(word) for word in done.stdout.split()] == expected(made, ids, 12), done.stderr
        assert f"{len(ids)} tokens read, the first one written after" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("1,999",), "there is no token 999; the model has 256, counted from 0"),
        (("1,x",), "'x' is no token; give 1,2,3"),
        (("1", "80"), "the context is full: it has room for 64 tokens, 64 are kept, and 1 more were given"),
        ((",".join(["1"] * 65),), "the context is full: it has room for 64 tokens, 0 are kept, and 65 more were given"),
    ],
)
def test_the_cpp_program_says_what_is_wrong_in_one_line(write: Path, words: tuple[str, ...], reason: str) -> None:
    done = subprocess.run([write, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert done.stderr.startswith(reason)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--context", "4096"), "was trained for 512 tokens; give no more with --context"),
        (("--dim", "n=4"), "has no open shapes; --context says how many tokens it keeps"),
        (("--precision", "int8", "--calibrate", "small.gguf"), "is a GGUF file; --precision int8 is for ONNX models"),
        (("--context", "1"), "--context: give a number from 16 to 1000000"),
    ],
)
def test_submit_says_what_is_wrong_in_one_line(made: Path, words: tuple[str, ...], reason: str) -> None:
    done = User(made).run(
        "submit", made / "small.gguf", *(str(made / word) if "gguf" in word else word for word in words)
    )
    assert done.returncode != 0
    (line,) = done.stderr.strip().splitlines()[-1:]
    assert reason in line


def n_bits(path: Path, inner: int, columns: int) -> Path:
    """Write a product with weights of four bits, for which ONNX Runtime is told to round activations to bytes."""
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.integers(0, 256, (columns, inner // 32, 16), dtype=np.uint8), "weight"),
        onnx.numpy_helper.from_array(rng.uniform(0.01, 0.02, columns * inner // 32).astype(np.float32), "scale"),
    ]
    sizes = {"K": inner, "N": columns, "bits": 4, "block_size": 32, "accuracy_level": 4}
    node = onnx.helper.make_node("MatMulNBits", ["x", "weight", "scale"], ["y"], domain="com.microsoft", **sizes)
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, size))
        for name, size in (("x", inner), ("y", columns))
    )
    graph = onnx.helper.make_graph([node], "product", [x], [y], weights)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_onnx_with_activations_in_bytes_is_verified_by_float32(user: User, tmp_path: Path) -> None:
    """Not by what ONNX Runtime computes, which rounds in the same way: the error would be that of the last bit."""
    user.ok("submit", n_bits(tmp_path / "bits.onnx", 256, 64), "--activations", "int8")
    user.ok("export", 1, "--quick", "--output", tmp_path / "lib")
    report = json.loads((tmp_path / "lib" / "report.json").read_text())
    assert [task["name"] for task in report["tasks"]] == ["packed_product"]
    assert 1e-4 < report["largest_relative_error"] < report["tolerance"] == 0.1


def test_a_model_without_packed_weights_has_no_activations_to_round(
    user: User, convolution: Any, tmp_path: Path
) -> None:
    done = user.run("submit", convolution(tmp_path / "net.onnx", (1, 8, 6, 6), 8), "--activations", "int8")
    assert done.returncode != 0
    assert "no product has packed weights for this target; leave out --activations" in done.stderr
