"""Python runs this as it starts, where it is on the path: while a file REFUSE_WHILE is there, writes below REFUSE fail.

It stands for what a test cannot have: a quota that is used up, a disk that breaks, a folder of another user.
"""

import errno
import os

_write = os.write


def _refusing(descriptor, data):
    number = _number()
    if number and os.readlink(f"/proc/self/fd/{descriptor}").startswith(os.environ["REFUSE"]):
        raise OSError(number, os.strerror(number))
    return _write(descriptor, data)


def _number():
    """That of the error, if any. The test makes the file and removes it at any moment: in between, it is empty."""
    try:
        with open(os.environ["REFUSE_WHILE"]) as file:
            return getattr(errno, file.read() or "none", 0)
    except FileNotFoundError:
        return 0


os.write = _refusing
