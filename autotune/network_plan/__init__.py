"""Plans of networks: what is computed together, how, by how many threads, in which order, and where results lie."""
