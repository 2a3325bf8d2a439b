#!/usr/bin/env python
"""Compare an exported language model with llama.cpp and its fork, on the same GGUF file, or with ONNX Runtime.

    python scripts/bench/bench_language_models.py EXPORT GGUF --rival llama_cpp=PYTHON --rival ik_llama_cpp=PYTHON

EXPORT is a folder that `autotune export` wrote, PYTHON an interpreter that has the package of the rival
(`llama-cpp-python` or `ik-llama-cpp-python`): nothing is fetched. ONNX Runtime (`--rival onnxruntime=PYTHON`) reads the
ONNX model beside the file, which `scripts/models/gguf_to_onnx.py` writes. A turn starts each runtime in a process of
its own, alone, on random tokens that are the same for all. Columns: the median of the turns; in brackets ours as a
fraction of the rival's within a turn, with its range. Rows: milliseconds of a token after 256 and after 1,500 others,
and of a prompt of 512; the peak memory of the process, with Python in it; and the largest error of the logits after the
prompt, as a fraction of the largest logit, against NumPy in float32. The share of the bandwidth is that of the bytes
which a token needs at least, the file of weights and what is kept of the tokens before. With --text, which needs the
package tokenizers, also the perplexity of a text in each runtime. With --greedy it times nothing, and says how many of
the first 16 tokens after five prompts are those of the others, and of NumPy in float32; where they first differ, by how
much the logit of ours is above that of theirs, and theirs above ours for the other. A turn takes some 15 s.
With --save the times go into docs/data/language_models.json, for the chart of the README.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import language_model_process
import numpy as np
from exports import Export
from headline import DATA, machine

from autotune.tvm_backend.models.gguf.network import DecoderFile, read_network
from autotune.tvm_backend.models.gguf.plain_text import tokens_of
from autotune.tvm_backend.models.gguf.reference import DecoderReference, cache_shapes

OURS = "ours"
RESULTS = DATA / "language_models.json"
_ROWS = {
    **{f"decode_{past}": (f"a token after {past}", "ms", 1.0) for past in language_model_process.PASTS},
    "prefill_512": ("a prompt of 512", "ms", 1.0),
    "load_ms": ("loading", "ms", 1.0),
    "memory": ("peak memory", "MB", 1e-6),
}
_MODELS = {"onnxruntime": ".onnx"}  # what runtimes read that read no GGUF
PROMPTS = (
    "Gravity is",
    "Once upon a time",
    "To make bread, you need",
    "The capital of France is a city that",
    "def largest(values):",
)
Figures = Mapping[str, Any]
Places = Sequence[Sequence[tuple[int, float]]]  # what `greedy` returns of a prompt


def main() -> None:
    options = parse()
    export = Export.read(options.export)
    others = {name: (at, options.gguf.with_suffix(_MODELS.get(name, ".gguf"))) for name, at in options.rivals}
    runtimes = {OURS: (sys.executable, options.export), **others}
    if options.greedy:
        print(agreement(runtimes, options))
        return
    turns: dict[str, list[Figures]] = {name: [] for name in runtimes}
    for turn in range(options.turns):
        for name in list(runtimes)[:: -1 if turn % 2 else 1]:
            turns[name].append(run(name, *runtimes[name], options))
    print(table(turns))
    if options.save:
        save(turns, options)
    print(f"\nerror of logits: {', '.join(errors(turns, options.gguf))}")
    if options.text:
        print(f"perplexity: {', '.join(perplexities(runtimes, options))}")
    print(bandwidth(turns[OURS], export.report, options.gguf))
    sizes = options.gguf.stat().st_size, (options.export / "model.so").stat().st_size
    print(f"GGUF {sizes[0] / 1e6:.1f} MB, library {sizes[1] / 1e6:.1f} MB ({sizes[1] / sizes[0]:.2f})")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path, help="folder of an export")
    parser.add_argument("gguf", type=Path, help="the file that it was made of")
    parser.add_argument("--rival", dest="rivals", action="append", default=[], type=rival, metavar="PACKAGE=PYTHON")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text", type=Path, help="a text whose perplexity is computed")
    parser.add_argument("--greedy", action="store_true", help="compare the tokens that are written, and not times")
    parser.add_argument("--name", help="of the model, for --save; by default that of the file")
    parser.add_argument("--save", action="store_true", help="write the times to docs/data/language_models.json")
    parser.add_argument("--context", type=int, default=2048, help="that the export has room for")
    return parser.parse_args()


def rival(text: str) -> tuple[str, str]:
    """Split `PACKAGE=PYTHON`."""
    package, _, python = text.partition("=")
    if package not in ("llama_cpp", "ik_llama_cpp", *_MODELS) or not python:
        raise argparse.ArgumentTypeError(f"{text} is not PACKAGE=PYTHON, with llama_cpp, ik_llama_cpp or onnxruntime")
    return package, python


def run(name: str, python: str, model: Path, options: argparse.Namespace, *more: str) -> Any:
    words = [name, str(model), str(options.threads), str(options.context), *more]
    command = [python, language_model_process.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def perplexities(runtimes: Mapping[str, tuple[str, Path]], options: argparse.Namespace) -> list[str]:
    """What each runtime's perplexity of the text is, of as many of its tokens as the context has room for."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(options.export / "tokenizer.json"))
    ids = tokenizer.encode(options.text.read_text()).ids[: options.context]
    values = asked(runtimes, options, {"text": ids})
    return [f"{len(ids)} tokens", *(f"{name} {value:.3f}" for name, value in values.items())]


def asked(
    runtimes: Mapping[str, tuple[str, Path]], options: argparse.Namespace, content: Mapping[str, Any]
) -> dict[str, Any]:
    """What each runtime answers to the content of a file, without timings."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(content, file)
        file.flush()
        return {name: run(name, *runtime, options, file.name) for name, runtime in runtimes.items()}


def agreement(runtimes: Mapping[str, tuple[str, Path]], options: argparse.Namespace) -> str:
    """Markdown: how many of the first tokens after each prompt are the same."""
    network = read_network(options.gguf)
    prompts = [tokens_of(network.file, prompt) for prompt in PROMPTS]
    if None in prompts:
        sys.exit(f"{options.gguf} has no tokenizer that joins byte pairs")
    written = asked(runtimes, options, {"prompts": prompts})
    written["NumPy, float32"] = language_model_process.greedy(reader(network), prompts)
    ours = written.pop(OURS)
    lines = [f"| prompt | {' | '.join(written)} |", "|---" * (len(written) + 1) + "|"]
    for index, prompt in enumerate(PROMPTS):
        cells = (same_tokens(ours[index], theirs[index]) for theirs in written.values())
        lines.append(f"| {prompt} | {' | '.join(cells)} |")
    return "\n".join(lines)


def same_tokens(ours: Places, theirs: Places) -> str:
    """Say how many tokens are the same, and of the first that is not how much likelier each runtime finds its own."""
    pairs = [(mine[0][0], other[0][0]) for mine, other in zip(ours, theirs, strict=True)]
    first = next((place for place, (mine, other) in enumerate(pairs) if mine != other), None)
    if first is None:
        return f"{len(pairs)}"
    mine, other = pairs[first]
    return f"{first}, then {gap(ours[first], mine, other)} and {gap(theirs[first], other, mine)}"


def gap(likely: Sequence[tuple[int, float]], taken: int, left: int) -> str:
    logits = {token: logit for token, logit in likely}
    return f"{logits[taken] - logits[left]:.3f}" if left in logits else f"over {likely[0][1] - likely[-1][1]:.3f}"


def reader(network: DecoderFile) -> language_model_process.Read:
    """Read tokens with NumPy in float32."""
    reference = DecoderReference(network)
    cache = [np.zeros(shape, np.float32) for shape in cache_shapes(network.sizes, language_model_process.PROMPT)]
    return lambda tokens, past: reference.logits(np.array(tokens), past, *cache).ravel()


def table(turns: Mapping[str, Sequence[Figures]]) -> str:
    """Markdown: medians over the turns, and ours as a fraction of each rival's within a turn."""
    lines = [f"| | {' | '.join(turns)} |", "|---" * (len(turns) + 1) + "|"]
    for key, (title, unit, factor) in _ROWS.items():
        cells = []
        for name, figures in turns.items():
            cell = f"{statistics.median(item[key] for item in figures) * factor:.3g} {unit}"
            shares = [mine[key] / other[key] for mine, other in zip(turns[OURS], figures, strict=True)]
            share = f" ({statistics.median(shares):.2f}, {min(shares):.2f} to {max(shares):.2f})"
            cells.append(cell if name == OURS else cell + share)
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def save(turns: Mapping[str, Sequence[Figures]], options: argparse.Namespace) -> None:
    """Write the times of this machine to the file that the chart is drawn from."""
    kept = json.loads(RESULTS.read_text())["machines"] if RESULTS.exists() else []
    here = {
        **machine(),
        "model": options.name or options.gguf.stem,
        "turns": options.turns,
        "rows": list(saved_rows(turns)),
    }
    others = [entry for entry in kept if (entry["cpu"], entry["cpus"]) != (here["cpu"], here["cpus"])]
    RESULTS.write_text(json.dumps({"machines": [*others, here]}, indent=1) + "\n")


def saved_rows(turns: Mapping[str, Sequence[Figures]]) -> Iterator[dict[str, Any]]:
    """The times of tokens and of a prompt, and ours as a share of the fastest other's within a turn."""
    for key in (key for key in _ROWS if key.startswith(("decode", "prefill"))):
        times = {name: statistics.median(item[key] for item in figures) for name, figures in turns.items()}
        best = min((name for name in times if name != OURS), key=lambda name: times[name])
        shares = [mine[key] / other[key] for mine, other in zip(turns[OURS], turns[best], strict=True)]
        share = [round(value, 3) for value in (statistics.median(shares), min(shares), max(shares))]
        ms = {name: float(f"{value:.4g}") for name, value in times.items()}
        yield {"what": _ROWS[key][0], "ms": ms, "fastest_other": best, "share": share}


def errors(turns: Mapping[str, Sequence[Figures]], gguf: Path) -> list[str]:
    """What each runtime's logits after the prompt are off by, as a fraction of the largest one."""
    network = read_network(gguf)
    prompt = language_model_process.drawn_tokens(network.sizes.vocabulary)[: language_model_process.PROMPT]
    right = reader(network)(prompt, 0)
    largest = np.abs(right).max()
    return [f"{name} {np.abs(figures[0]['logits'] - right).max() / largest:.3f}" for name, figures in turns.items()]


def bandwidth(ours: Sequence[Figures], report: Mapping[str, Any], gguf: Path) -> str:
    """The share of the bandwidth, which the export measured, that writing a token reaches."""
    if report["roofline"] is None:
        return "the export measured no bandwidth: it was quick"
    sizes = read_network(gguf).sizes
    element = np.dtype(report["inputs"][-1]["dtype"]).itemsize
    shares = []
    for past in language_model_process.PASTS:
        kept = sum(int(np.prod(shape)) * element for shape in cache_shapes(sizes, past))
        seconds = statistics.median(item[f"decode_{past}"] for item in ours) / 1e3
        shares.append(f"{(gguf.stat().st_size + kept) / seconds / 1e9 / report['roofline']['gb_per_s']:.0%} ({past})")
    return f"share of {report['roofline']['gb_per_s']:.1f} GB/s: {', '.join(shares)}"


if __name__ == "__main__":
    main()
