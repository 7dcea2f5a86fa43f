"""The rules, by what they look at; :mod:`commcc.lint.registry` lists them."""
