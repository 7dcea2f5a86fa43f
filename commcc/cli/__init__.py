"""The command line: thin commands over the library; imports no torch until a graph is read.

``main`` holds the entry point and the table of commands, ``session`` one run of a command: its files, its defaults
and what goes to which stream. ``rewriting`` is what commands share that write a new graph.
"""
