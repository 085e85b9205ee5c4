"""The config section `safety:`."""

import msgspec

from cluster.config.guard import GuardConfig


class SafetyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What screens the texts of requests and of answers (docs/safety.md). Without a folder, nothing is screened."""

    folder: str | None = None
    """The folder of policies, word lists and the classifier, such as `conf/safety`. A relative folder is looked up in
    the repository. Policies and lists are read again when they change; nothing has to be restarted.
    """
    classifier: str | None = "linear"
    """What loads the folder's classifier: "linear" for Baton's own, or "package.module:factory" for another one, which
    is called with the path of `classifier/` in the folder (api/safety/classifiers/classifier_loading.py). null for
    none.
    """
    guard: GuardConfig | None = None
    """An LLM that judges what the other stages are in doubt about. Without one, the thresholds alone decide."""
