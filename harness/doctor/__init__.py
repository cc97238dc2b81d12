"""`harness doctor`: what of a host helps or hinders a run, and what to do about it."""
