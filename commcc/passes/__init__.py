"""Passes: read an index, return a plan. One pass a file; none of them touches ``torch``.

``registry`` finds a pass by name, ``options`` builds one from text and prints it back.
"""
