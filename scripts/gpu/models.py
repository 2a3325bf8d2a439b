#!/usr/bin/env python
"""Make the networks of the proof as ONNX files: those of make_models.py, and some that only a GPU finishes in minutes.

    python scripts/gpu/models.py resnet50 --output build/gpu/models

`NAME_bN` is a network at batch N, and `product_RxTxC` a product of R rows, T terms and C columns.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import make_models
from make_models import CLASSES, IMAGE, LINEAR_SCALE, Net, Tensor


def resnet50(net: Net) -> Tensor:
    """ResNet-50 (He et al., 2015), with the stride in the 3x3 convolutions"""
    x = net.relu(net.conv_bn(net.input("input", *IMAGE), 64, 7, stride=2))
    x = net.max_pool(x, 3, stride=2, pad=1)
    for channels, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            x = _bottleneck(net, x, channels, stride if block == 0 else 1, widen=block == 0)
    return net.gemm(net.global_pool(x), CLASSES)


def _bottleneck(net: Net, x: Tensor, channels: int, stride: int, *, widen: bool) -> Tensor:
    branch = net.relu(net.conv_bn(x, channels, 1))
    branch = net.relu(net.conv_bn(branch, channels, 3, stride=stride))
    branch = net.conv_bn(branch, 4 * channels, 1, scale=LINEAR_SCALE)
    if widen:
        x = net.conv_bn(x, 4 * channels, 1, stride=stride, scale=LINEAR_SCALE)
    return net.relu(net.add(branch, x))


def bert_layer(net: Net) -> Tensor:
    """one layer of BERT-base (Devlin et al., 2018): 768 wide, 12 heads, 128 tokens"""
    x = net.input("input", 128, 768)
    x = net.layer_norm(net.add(make_models._attention(net, x, heads=12), x))
    return net.layer_norm(net.add(net.dense(net.gelu(net.dense(x, 4 * 768)), 768), x))


def product(net: Net, rows: int, terms: int, columns: int) -> Tensor:
    """a product of matrices, of which one is constant"""
    return net.matmul(
        net.input("input", rows, terms), net._normal("weight", terms, columns, deviation=1 / math.sqrt(terms))
    )


_SIZE = 4096
_OWN: dict[str, Callable[[Net], Tensor]] = {
    "resnet50": resnet50,
    "bert_layer": bert_layer,
    "product": partial(product, rows=_SIZE, terms=_SIZE, columns=_SIZE),
}
_PRODUCT = re.compile(r"product_(\d+)x(\d+)x(\d+)")
_SIDES = ("rows", "terms", "columns")
_BATCH = re.compile(r"_b(\d+)$")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a network of the proof as an ONNX file.")
    names = ", ".join((*make_models.NAMES, *_OWN))
    parser.add_argument("name", metavar="NAME", help=f"{names} (at batch N: NAME_bN), or product_RxTxC")
    parser.add_argument("--output", type=Path, default=Path("."))
    options = parser.parse_args()
    write(options.name, options.output)


def write(name: str, folder: Path) -> Path:
    """Write a network; return its path.

    Raises:
        KeyError: There is no network of this name.
    """
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    onnx.save(_build(name), str(path))
    return path


def _build(name: str) -> Any:
    asked = _BATCH.search(name)
    batch = int(asked[1]) if asked else 1
    network = _BATCH.sub("", name)
    if sizes := _PRODUCT.fullmatch(network):
        make: Callable[[Net], Tensor] = partial(
            product, **{side: int(size) for side, size in zip(_SIDES, sizes.groups(), strict=True)}
        )
    elif network in _OWN:
        make = _OWN[network]
    else:
        return make_models.build(network, batch=batch)
    net = Net(name, seed=0, batch=batch)
    return net.finish(make(net))


if __name__ == "__main__":
    main()
