"""Token counts: estimates, exact counts, windows and prices."""
