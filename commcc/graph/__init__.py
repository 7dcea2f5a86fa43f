"""A graph and the facts about it: programs, ops, the index, collectives, modules, memory, metrics."""
