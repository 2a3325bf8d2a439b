"""Python runs this as it starts, where it is on the path: while a file REFUSE_WHILE is there, writes below REFUSE fail.

It stands for what a test cannot have: a quota that is used up, a disk that breaks, a folder of another user.
"""

import errno
import os

_write = os.write


def _refusing(descriptor, data):
    flag = os.environ["REFUSE_WHILE"]
    if os.path.exists(flag) and os.readlink(f"/proc/self/fd/{descriptor}").startswith(os.environ["REFUSE"]):
        with open(flag) as file:
            number = getattr(errno, file.read())
        raise OSError(number, os.strerror(number))
    return _write(descriptor, data)


os.write = _refusing
