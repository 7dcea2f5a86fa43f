"""What every part of commcc may use and what knows nothing of graphs: errors, terms, files, text."""
