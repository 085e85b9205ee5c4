"""All that predictions are made from: what engines' steps and hand-overs take, and how far off whole requests were."""

from cluster.types import Path, Prediction, WorkerId, WorkerReport
from router.latency import LatencyModels
from router.path_bias import PathBias
from router.transfer import TransferModels


class Predictors:
    __slots__ = ("engines", "paths", "transfers")

    def __init__(self) -> None:
        self.engines = LatencyModels()
        self.transfers = TransferModels()
        self.paths = PathBias()

    def learn(self, report: WorkerReport) -> None:
        """From the steps and hand-overs that a worker reports."""
        engine = self.engines.model(report.shape.kind)
        for step in report.steps:
            engine.observe(step)
        for prefill, speed in report.links.items():
            if speed is not None:
                self.transfers.proved(prefill, report.worker, speed)
        for transfer in report.transfers:
            num_bytes = transfer.num_tokens * report.shape.kv_bytes_per_token
            self.transfers.observe(transfer.prefill, report.worker, num_bytes, transfer.seconds)

    def forget(self, worker: WorkerId) -> None:
        self.transfers.forget(worker)

    def ttft_s(self, path: Path, by_engines_s: float) -> float:
        """As clients see it, from what the engine models say."""
        return self.paths.ttft(path).corrected(by_engines_s)

    def by_engines(self, prediction: Prediction, age_s: float) -> tuple[float, float]:
        """TTFT and TPOT before they were corrected for what clients see."""
        ttft, tpot = self.paths.ttft(prediction.path), self.paths.tpot(prediction.path)
        ttft_s = (prediction.ttft_s - age_s - ttft.overhead_s) / ttft.factor
        return ttft_s, (prediction.tpot_s - tpot.overhead_s) / tpot.factor

    def tpot_s(self, path: Path, by_engines_s: float) -> float:
        return self.paths.tpot(path).corrected(by_engines_s)
