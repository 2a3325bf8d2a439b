"""The version of autotune, and the versions of TVM that it was tested with, in one place."""

__version__ = "0.2.0"
TESTED_TVM = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
