"""Plans of small samples of requests."""

from cluster.planning.alike_requests import alike_requests
from cluster.planning.capacity_plan import TENSOR_PARALLEL, CapacityPlan, Offer, best_plan
from cluster.planning.demand import Demand, demand_of
from cluster.simulation.traffic.slos import parse_slos
from router.prediction.hardware import H100, LINKS, QWEN3_32B
from router.prediction.roofline import Hardware, ModelShape


def a_demand(prompt: float = 2000, answer: float = 300, slo: str = "mid", hit: float = 0.0) -> Demand:
    return demand_of(alike_requests(10.0, prompt, answer, hit, 60), parse_slos(slo))


def an_offer(model: ModelShape = QWEN3_32B, hardware: Hardware = H100, link: str = "400g") -> Offer:
    return Offer(model=model, hardware=hardware, link=LINKS[link], step_tokens=2048, max_decoding=256)


def a_plan(
    rate: float = 100.0, demand: Demand | None = None, target: float = 0.9, tp: int | None = None
) -> CapacityPlan:
    return best_plan(demand or a_demand(), rate, target, an_offer(), TENSOR_PARALLEL if tp is None else (tp,))
