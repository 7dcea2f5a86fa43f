"""Splitting one collective with what is computed for it, or of it, slice by slice: the planner of pass ``split``.

    found = Splitter(program, index, model).regions(exposed)

Reads only; :mod:`commcc.apply.chunk` makes the edits.
"""
