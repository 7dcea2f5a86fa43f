"""The command line: thin commands over the library; imports no torch until a graph is read.

``main`` holds the entry point and the table of commands, ``session`` what goes to which stream,
``rewriting`` everything that commands share which make a new graph.
"""
