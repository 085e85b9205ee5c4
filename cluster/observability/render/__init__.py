"""The panels as one HTML file, with what a Prometheus has: the dashboard for those who have no Grafana.

`window.py` decides about times as Grafana does. `prometheus.py` asks, and `page.py` draws.
"""
