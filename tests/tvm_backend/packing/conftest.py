"""Networks of each kind, and what is made of them."""

from ..quantised_nets import cpu, here, quantised, quantised_dynamically, written  # noqa: F401
from ..recurrent_nets import compiled  # noqa: F401
from ..relax_functions import const, rewritten  # noqa: F401
