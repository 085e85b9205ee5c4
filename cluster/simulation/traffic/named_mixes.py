"""The named mixes of `baton simulate --mix` and `baton load --mix`. Where a mix imitates a trace, its test
(tests/unit/cluster/simulation/traffic/test_mixes.py) has the figures of the trace.
"""

from types import MappingProxyType

from cluster.messages.ids import SloClass
from cluster.simulation.traffic.mixes import Bursts, Mix, Renewal, Spread, Stream, log_normal

CHAT = Stream(
    prompts=log_normal(300, 1_500, 8_000),
    outputs=log_normal(220, 600, 2_000),
    further_turns=Spread(((0, 0), (0.3, 0), (0.6, 3), (0.9, 9), (1, 25))),
    think_s=log_normal(30, 120, 600),
    new_tokens=log_normal(60, 300, 4_000),
    num_system_prompts=4,
    system_tokens=1_100,
)
TOOLS = Stream(
    prompts=log_normal(150, 600, 4_000),
    outputs=log_normal(45, 140, 600),
    further_turns=Spread(((0, 1), (0.5, 2), (0.9, 6), (1, 12))),
    think_s=log_normal(1.5, 6, 60),
    new_tokens=log_normal(180, 900, 6_000),
    num_system_prompts=3,
    system_tokens=1_800,
)
AGENTS = Stream(
    prompts=log_normal(600, 2_500, 12_000),
    outputs=log_normal(130, 500, 2_000),
    further_turns=Spread(((0, 3), (0.5, 12), (0.9, 30), (1, 60))),
    think_s=log_normal(2, 10, 120),
    new_tokens=log_normal(400, 2_500, 12_000),
    max_prompt=120_000,
    num_system_prompts=2,
    system_tokens=4_200,
)
DOCUMENTS = Stream(
    share=27,
    prompts=Spread(
        (
            (0, 600),
            (0.05, 2_000),
            (0.28, 10_000),
            (0.5, 16_500),
            (0.86, 35_000),
            (0.93, 44_000),
            (0.99, 62_000),
            (1, 190_000),
        )
    ),
    outputs=Spread(((0, 1), (0.07, 2), (0.5, 30), (0.71, 69), (0.9, 180), (0.99, 500), (1, 893))),
    further_turns=Spread(((0, 0), (0.3, 0), (0.6, 1.8), (0.8, 4), (0.93, 9), (0.99, 18), (1, 24))),
    think_s=Spread(((0, 2), (0.1, 10), (0.5, 59), (0.9, 282), (0.99, 583), (1, 900))),
    new_tokens=Spread(((0, 1), (0.5, 300), (0.9, 1_200), (1, 8_000))),
    max_prompt=192_000,
)
SHORT_QUESTIONS = Stream(
    share=30,
    prompts=Spread(((0, 10), (0.5, 120), (1, 511))),
    outputs=Spread(((0, 2), (0.05, 20), (0.5, 330), (0.9, 640), (0.99, 800), (1, 893))),
)

MIXES = MappingProxyType(
    {
        "poisson": Mix(
            what="single requests, log-normal lengths, Poisson arrivals",
            rate_per_s=28.0,
            streams=(Stream(prompts=log_normal(1_500, 6_000, 32_768), outputs=log_normal(180, 500, 2_000)),),
        ),
        "chat": Mix(what="conversations that grow behind four system prompts", rate_per_s=48.0, streams=(CHAT,)),
        "tools": Mix(
            what="short answers that call tools: each result comes back behind the same prefix within seconds",
            rate_per_s=40.0,
            streams=(TOOLS,),
        ),
        "agents": Mix(
            what="agents whose prompts grow for dozens of steps, behind two long system prompts",
            rate_per_s=8.0,
            streams=(AGENTS,),
        ),
        "code-bursts": Mix(
            what="short outputs in heavy bursts, as in Azure's code trace of 2023",
            rate_per_s=2.57,
            arrivals=Bursts(silence_s=50.0, burst_s=22.5, burst_requests=184.0),
            streams=(
                Stream(
                    prompts=Spread(
                        (
                            (0, 20),
                            (0.23, 512),
                            (0.38, 1_024),
                            (0.5, 1_469),
                            (0.9, 5_188),
                            (0.95, 7_303),
                            (0.99, 7_436),
                            (1, 7_437),
                        )
                    ),
                    outputs=Spread(
                        ((0, 1), (0.05, 6), (0.5, 13), (0.9, 55), (0.95, 90), (0.99, 251), (0.999, 800), (1, 1_899))
                    ),
                ),
            ),
        ),
        "documents": Mix(
            what="questions to long documents beside short ones, as in Mooncake's synthetic trace",
            rate_per_s=3.91,
            streams=(DOCUMENTS, SHORT_QUESTIONS),
        ),
        "reasoning": Mix(
            what="short prompts, long reasoning before the answer, uneven arrivals",
            rate_per_s=20.0,
            arrivals=Renewal(cv=2.28),
            streams=(Stream(prompts=log_normal(400, 3_000, 16_000), outputs=log_normal(900, 4_000, 16_000)),),
        ),
        "background": Mix(
            what="interactive chat on workers that a batch job with long prompts and answers fills",
            rate_per_s=25.0,
            streams=(
                Stream(
                    share=3,
                    prompts=log_normal(400, 1_500, 8_000),
                    outputs=log_normal(150, 400, 1_000),
                    tenant="chat",
                    slo_class=SloClass.INTERACTIVE,
                ),
                Stream(
                    share=2,
                    prompts=log_normal(6_000, 16_000, 30_000),
                    outputs=log_normal(800, 1_600, 4_000),
                    tenant="batch",
                    slo_class=SloClass.BATCH,
                ),
            ),
        ),
        "tenants": Mix(
            what="interactive chat, a standard API and a batch job, each with its own tenant",
            rate_per_s=28.0,
            streams=(
                Stream(
                    share=5,
                    prompts=CHAT.prompts,
                    outputs=CHAT.outputs,
                    num_system_prompts=1,
                    system_tokens=1_100,
                    tenant="chat",
                    slo_class=SloClass.INTERACTIVE,
                ),
                Stream(
                    share=3, prompts=log_normal(2_000, 8_000, 32_768), outputs=log_normal(120, 400, 1_000), tenant="api"
                ),
                Stream(
                    share=2,
                    prompts=log_normal(6_000, 16_000, 32_768),
                    outputs=log_normal(300, 700, 2_000),
                    tenant="batch",
                    slo_class=SloClass.BATCH,
                ),
            ),
        ),
    }
)
