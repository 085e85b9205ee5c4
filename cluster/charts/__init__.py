"""Charts and pages without a plotting library, scripts or the network.

`chart.py` draws lines as SVG. `page.py` makes one HTML file of charts and text.
"""
