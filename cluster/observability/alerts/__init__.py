"""The alerts as one table, with their conditions in PromQL and their runbooks.

`table.py` joins the subjects. `rules.py` writes the table as rules of Prometheus.
"""
