"""The options of `baton simulate` that say what the steps of the simulated engines really take."""

import argparse
from pathlib import Path

import msgspec

from cluster.simulation.engine.truth.step_table import StepTable
from cluster.simulation.engine.truth.truth import FORMS, Stragglers, Truth
from cluster.simulation.engine.truth.uneven_steps import Noise


def add_truth(parser: argparse.ArgumentParser) -> None:
    truth = parser.add_argument_group(
        "truth", "What the engines' steps really take. The Scheduler's predictions start from the roofline."
    )
    truth.add_argument(
        "--truth",
        type=_form,
        default="roofline",
        metavar="FORM",
        help=f"{', '.join(FORMS)}, or a JSON file with a table of measured step times (default: %(default)s)",
    )
    truth.add_argument(
        "--noise",
        type=float,
        default=0.0,
        metavar="SIGMA",
        help="standard deviation of the log of a factor on the time of a step or decode run (default: %(default)s)",
    )
    truth.add_argument(
        "--stalls",
        type=_pair,
        default=(0.0, 0.0),
        metavar="SHARExS",
        help="share of the steps and decode runs that stall, and the seconds, e.g. 0.001x0.25 (default: none)",
    )
    truth.add_argument(
        "--stragglers",
        type=_pair,
        default=(0.0, 1.0),
        metavar="NxFACTOR",
        help="slower workers, and the factor on the time of their steps, e.g. 2x1.5 (default: none)",
    )


def truth_of(arguments: argparse.Namespace) -> Truth:
    (stall_share, stall_s), (number, factor) = arguments.stalls, arguments.stragglers
    if not number.is_integer():
        raise ValueError(f"--stragglers {number:g}x{factor:g}: the number of workers is not a whole number")
    return Truth(
        form=arguments.truth,
        noise=Noise(sigma=arguments.noise, stall_share=stall_share, stall_s=stall_s),
        stragglers=Stragglers(number=int(number), factor=factor),
        seed=arguments.seed,
    )


def _pair(text: str) -> tuple[float, float]:
    first, _, second = text.partition("x")
    try:
        return float(first), float(second)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers with an x between them") from None


def _form(text: str) -> str | StepTable:
    if text in FORMS:
        return text
    try:
        return msgspec.json.decode(Path(text).read_bytes(), type=StepTable)
    except (OSError, msgspec.DecodeError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {', '.join(FORMS)} and no file with a table of step times: {error}"
        ) from error
