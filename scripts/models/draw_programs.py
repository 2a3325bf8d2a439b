#!/usr/bin/env python
"""Draw twenty networks of torchvision and timm by rule, and take them as programs of PyTorch through submit and export.

    python scripts/models/draw_programs.py              # a row for each: half an hour
    python scripts/models/draw_programs.py timm-mixnet_s # these
    python scripts/models/draw_programs.py --list       # which are drawn, and no more
    python scripts/models/draw_programs.py --report     # the table of what was run before

The rule: the names that a library lists are shuffled with a fixed seed. The first ten are taken whose module is that of
none taken before, and that have at most fifteen million parameters. Of torchvision it is those that classify pictures
or videos and those that segment. Weights are random, from the seed of the draw; a picture has the size that the library
says. Another version of a library lists other names: the versions are pinned, and the table begins with them.

A network is written by `torch.export.save`, submitted, compiled without trials, and verified against PyTorch.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model_zoo import Failed, tune
from zoo.listed import Listed
from zoo.rows import Row, append, markdown, read

from autotune.errors import one_line

SEED = 20260
EACH = 10
MOST_PARAMETERS = 15e6
VERSIONS = {"torch": "2.14.1", "torchvision": "0.29.1", "timm": "1.0.31"}
_PICTURE = (3, 224, 224)
_VIDEO = (3, 16, 112, 112)


@dataclass(frozen=True)
class Network:
    """A network that a library lists.

    Attributes:
        name: What the library calls it.
        module: Where it is defined: networks of one kind share it.
        make: Makes it with random weights.
        shape: That of a picture or video; None for the size that the network itself names.
    """

    name: str
    module: str
    make: Callable[[], Any]
    shape: tuple[int, ...] | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks (default: all that are drawn)")
    parser.add_argument("--folder", type=Path, default=Path("build/programs"), help="programs, workspaces, rows")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    other = other_versions(VERSIONS)
    if other:
        parser.exit(2, f"{parser.prog}: error: {', '.join(other)} would draw other networks\n")
    networks = {f"{library}-{network.name}": network for library, network in drawn()}
    if options.list:
        print("\n".join(networks))
        return
    kept = options.folder / "rows.jsonl"
    rows = read(kept)
    for name in options.names or networks:
        if not options.report and (options.names or name not in rows):
            rows[name] = _row(name, networks[name], options.folder)
            append(kept, rows[name])
            print(rows[name], file=sys.stderr, flush=True)
    print(", ".join(f"{library} {number}" for library, number in VERSIONS.items()))
    print(markdown(map(_listed, networks), rows))
    ran = [rows[name] for name in networks if name in rows]
    print(f"\n{sum(not row.stage for row in ran)} of {len(ran)} networks")


def other_versions(pinned: Mapping[str, str]) -> list[str]:
    """Name the libraries of which another version is installed than the one that is pinned."""
    installed = {library: version(library).partition("+")[0] for library in pinned}
    return [f"{library} {number}" for library, number in installed.items() if number != pinned[library]]


def drawn() -> Iterator[tuple[str, Network]]:
    """Yield the networks that the rule takes, each with its library."""
    for library, networks in (("torchvision", _torchvision()), ("timm", _timm())):
        yield from ((library, network) for network in draw(networks, EACH, SEED, _is_small))


def draw(networks: list[Network], count: int, seed: int, fits: Callable[[Network], bool]) -> list[Network]:
    """Take so many networks in a shuffled order, of different modules, that fit; fewer if there are no more.

    Args:
        networks: What a library lists, in any order.
        count: How many to take.
        seed: That of the order.
        fits: Whether one is small enough. It is asked in that order, of those of modules that are not taken.
    """
    shuffled = sorted(networks, key=lambda network: network.name)
    random.Random(seed).shuffle(shuffled)
    taken: dict[str, Network] = {}
    for network in shuffled:
        if len(taken) < count and network.module not in taken and fits(network):
            taken[network.module] = network
    return list(taken.values())


def _is_small(network: Network) -> bool:
    import torch

    try:
        with torch.device("meta"):
            made = network.make()
    except Exception:  # one that computes its weights has none on this device
        made = network.make()
    return sum(parameter.numel() for parameter in made.parameters()) <= MOST_PARAMETERS


def _torchvision() -> list[Network]:
    from torchvision import models

    networks = []
    for module, shape in ((models, _PICTURE), (models.segmentation, _PICTURE), (models.video, _VIDEO)):
        random_weights = {"weights": None, **({"weights_backbone": None} if module is models.segmentation else {})}
        for name in models.list_models(module=module):
            builder = models.get_model_builder(name)
            networks.append(Network(name, builder.__module__, _maker(models.get_model, name, **random_weights), shape))
    return networks


def _timm() -> list[Network]:
    import timm

    names = timm.list_models()
    return [Network(name, timm.model_entrypoint(name).__module__, _maker(timm.create_model, name)) for name in names]


def _maker(create: Callable[..., Any], name: str, **options: Any) -> Callable[[], Any]:
    return lambda: create(name, **options)


def _row(name: str, network: Network, folder: Path) -> Row:
    begun = time.monotonic()
    outcome: dict[str, Any] = {}
    try:
        path = _written(network, folder / f"{name}.pt2")
        outcome = tune(_listed(name), path, argparse.Namespace(folder=folder, trials=0))
    except Failed as error:
        outcome = {"stage": error.args[0], "reason": error.args[1]}
    except Exception as error:  # whatever torch.export raises
        outcome = {"stage": "torch.export", "reason": one_line(error)}
    return Row(name, seconds=round(time.monotonic() - begun, 1), **outcome)


def _written(network: Network, path: Path) -> Path:
    """The file of a network with random weights."""
    import torch

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(SEED)
        made = network.make().eval()
        shape = network.shape or made.default_cfg["input_size"]
        program = torch.export.export(made, (torch.rand(1, *shape),))
        torch.export.save(program, path)
    return path


def _listed(name: str) -> Listed:
    library = name.partition("-")[0]
    return Listed(name, "program of PyTorch", library, VERSIONS[library])


if __name__ == "__main__":
    main()
