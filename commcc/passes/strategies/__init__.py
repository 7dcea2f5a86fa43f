"""How ``bucket`` forms its buckets: one module for each strategy, by name in :data:`commcc.passes.bucket.STRATEGIES`.

A strategy is a function ``form(options, context) -> BucketResult`` in a module of its own, which is imported when it
is asked for. It decides which collectives to merge, reads only, and gives the same result for the same arguments. To
add one, add a line to the table and name the strategy in the ``strategies`` of the options that belong to it.
"""
