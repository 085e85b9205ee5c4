"""What a second of a worker's time costs while prompts keep the workers busy, in requests that find no time. Pure.

Engines compute prompts by deadline. So a long prompt hardly delays the next requests, which overtake it: it takes the
time of other long prompts, and may be late itself. A prompt that is late has taken its time for nothing, from requests
that would have met their SLO. So the cost of an option has the requests that its time would serve, times the
probability that its first token is late.
"""

from typing import Final

FULL_PRICE: Final = 2.4
"""Requests that the time of the usual prompt would serve if prompts took all time of the workers. Higher refuses long
prompts that would have been in time; lower computes long prompts that are late.
"""
RISE: Final = 3
"""Power of the share of the workers' time that prompts take, by which the price rises. Time that no other prompt would
have used costs nothing. Higher computes prompts that are late on workers that are fairly busy; lower refuses long
prompts where there is time for them.
"""


def time_price(prompt_use: float, usual_s: float) -> float:
    """Requests that one second of a worker would serve. `prompt_use`: the share of the workers' time that prompts take;
    `usual_s`: seconds that the usual prompt takes, 0 if there is none.
    """
    return FULL_PRICE * prompt_use**RISE / usual_s if usual_s else 0.0
