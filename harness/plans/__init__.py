"""The verbs people type about plan documents: show, import, export, diff, merge, freeze, audit.

Besides the reference adapter the only part of the harness that knows the kernels package.
"""
