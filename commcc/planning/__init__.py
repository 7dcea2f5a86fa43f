"""What planners share: which launches may merge, what a merge costs, and the headroom that memory leaves."""
