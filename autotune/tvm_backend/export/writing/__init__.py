"""Write the output folder: the library, its report, the programs that run it, and the network as C++ source."""
