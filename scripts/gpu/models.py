#!/usr/bin/env python
"""Make the networks of the proof as ONNX files: those of make_models.py, and some that only a GPU finishes in minutes.

python scripts/gpu/models.py resnet50 --output build/gpu/models
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

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


def product(net: Net) -> Tensor:
    """a product of two 4096x4096 matrices, of which one is constant"""
    size = 4096
    return net.matmul(net.input("input", size, size), net._normal("weight", size, size, deviation=1 / math.sqrt(size)))


_OWN = {network.__name__: network for network in (resnet50, bert_layer, product)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a network of the proof as an ONNX file.")
    parser.add_argument("name", choices=(*make_models.NAMES, *_OWN))
    parser.add_argument("--output", type=Path, default=Path("."))
    options = parser.parse_args()
    write(options.name, options.output)


def write(name: str, folder: Path) -> Path:
    """Write a network; return its path."""
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    if name in _OWN:
        net = Net(name, seed=0, batch=1)
        onnx.save(net.finish(_OWN[name](net)), str(path))
    else:
        onnx.save(make_models.build(name), str(path))
    return path


if __name__ == "__main__":
    main()
