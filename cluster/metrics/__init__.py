"""The table of Baton's metrics, one module for each subject.

Each process counts in its own Prometheus registry, which also contains vLLM's engine metrics (`page.py`).
"""
