"""The daemon: in the foreground, in the background, every night, or until its jobs have ended."""
