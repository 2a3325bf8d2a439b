"""What autotune keeps on disk: atomic files, the append-only log, locks, and who holds what.

A file is published whole or not at all (``atomic``). What must never be lost is appended to a
log that survives torn and damaged lines (``record_log``). Who may write, or use a device, is a
lock that the kernel releases when its holder dies (``locks``); who that was is an ``identity``.
"""
