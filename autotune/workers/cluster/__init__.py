"""Stages on the nodes of a Ray cluster.

    daemon ── runner.py ── pipe ── bridge.py ── Ray ── host.py on each node ── worker_pool.py on a copy of the files

The daemon never imports Ray: the bridge is a process of its own, which may die with the cluster and is started again.
The bridge writes the workspace, as workers do: what a stage found is in it before its report reaches the daemon.
"""
