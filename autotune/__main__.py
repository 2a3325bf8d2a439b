"""`python -m autotune` is `autotune`."""

from autotune.cli import main

main()
