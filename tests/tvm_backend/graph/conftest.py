"""Functions before and after a rewrite."""

from ..relax_functions import const, rewritten  # noqa: F401
