"""Orchestration of gates: plan, lease, engines, load, evidence, verdict."""

__version__ = "0.1.0"
