"""Parts of :func:`commcc.diff.diff`: ``match`` pairs nodes, ``moves`` and ``lineage`` read the pairs."""
