"""Fixtures that write small networks, which the tests of integer kernels use, too."""

from __future__ import annotations

from tests.tvm_backend.integer.conftest import quantised as quantised
from tests.tvm_backend.integer.conftest import written as written
