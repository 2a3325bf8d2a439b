"""The network as C++ source: its blocks, its memory, and the files beside it."""
