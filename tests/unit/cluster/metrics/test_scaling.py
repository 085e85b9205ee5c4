"""What the config has is on the page, by cell and pool."""

from cluster.messages.ids import Pool
from cluster.metrics.page import render, scrape
from cluster.metrics.scaling import set_configured


def test_each_cell_has_its_pools_and_the_only_cell_has_no_name() -> None:
    set_configured(["", "east"], {Pool.PREFILL: 1, Pool.DECODE: 3})
    page = render([scrape("ingress", "i")], model="m").decode()
    for line in (
        'baton_pool_configured{cell="",pool="decode",deployment="ingress",model="m",replica="i"} 3.0',
        'baton_pool_configured{cell="east",pool="prefill",deployment="ingress",model="m",replica="i"} 1.0',
        'baton_cell_configured{cell="east",deployment="ingress",model="m",replica="i"} 1.0',
    ):
        assert line in page.splitlines()
