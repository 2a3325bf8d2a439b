"""Tensors that end at a page that nobody may read: a kernel that reads beyond them ends its process."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 64  # of tensors, which kernels rely on
_PROT_NONE = 0
_C = ctypes.CDLL(None, use_errno=True)
_C.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_kept: list[mmap.mmap] = []  # never unmapped: the arrays do not own them


def guarded(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy that ends where a page begins that nobody may read, or less than 64 bytes before it.

    A page before it may not be read either, where the copy begins with a page.
    """
    page = mmap.PAGESIZE
    room = -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    pages = -(-room // page) * page
    memory = mmap.mmap(-1, pages + 2 * page)
    _kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for forbidden in (start, start + page + pages):
        if _C.mprotect(forbidden, page, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    copy = np.frombuffer(memory, array.dtype, array.size, page + pages - room).reshape(array.shape)
    copy[...] = array
    return copy


def ends_well(work: Callable[[], bool]) -> bool:
    """Return whether work in a forked process says so, and does not end the process."""
    child = os.fork()
    if not child:
        faulthandler.enable()
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
