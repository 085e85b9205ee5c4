"""The dashboard as one table: a panel for each figure that an operator looks at, with its PromQL.

`table.py` joins the subjects. `grafana.py` writes the table as a dashboard of Grafana. `render/` beside this folder
draws it without Grafana.
"""
