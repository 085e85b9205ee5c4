"""The tenants of the shared service whose texts are screened, and their policies. Nothing else of it is screened."""

import shutil
from pathlib import Path
from typing import Any

from api.identity.tenants import tenant_of_key
from cluster.repository import REPO_ROOT

CLOSED_KEY, OPEN_KEY, AUDITED_KEY, GUARD_KEY = (f"sk-{name}" for name in ("closed", "open", "audited", "guard"))
"""The API keys of the tenant whose guard fails closed, of the one whose guard fails open, of the one that demands the
audit log, and of the guard itself, which asks the service.
"""
DEADLINE_S = 5.0
"""Time of the guard for one text, in seconds. Longer has each test of a guard that hangs wait; shorter takes a guard
for dead whose engine shares two cores with everything else.
"""
UNSCREENED = """
[stages]
lists.runs = "never"
personal_data.runs = "never"
classifier.runs = "never"
guard.runs = "never"
"""
"""So that all other tests run what is served without a screening. The policy `off` still looks for terms."""
GUARDED = f"""
default_threshold = "off"
audits_all = true

[stages.classifier]
runs = "never"

[stages.guard]
runs = "always"
deadline_s = {DEADLINE_S}
fails_closed = """
"""The guard is the demo model, so that no test may depend on what it says: no score blocks, but for `safety_settings`.
"""
AUDITED = """
default_threshold = "off"
audits_all = true
needs_audit = true
stages.guard.runs = "never"
"""
POLICIES = {
    "unscreened": UNSCREENED,
    "closed": f"{GUARDED}true\n",
    "open": f"{GUARDED}false\n",
    "audited": AUDITED,
}
TENANTS = {CLOSED_KEY: "closed", OPEN_KEY: "open", AUDITED_KEY: "audited", GUARD_KEY: "off"}


def screened_by(guard: str, folder: Path) -> dict[str, Any]:
    """The config section `safety`. `guard`: its URL. `folder`: of the policies, which are written there."""
    shutil.copytree(REPO_ROOT / "conf/safety", folder)
    for name, policy in POLICIES.items():
        (folder / f"policies/{name}.toml").write_text(policy)
    named = "".join(f'{tenant_of_key(key)} = "{policy}"\n' for key, policy in TENANTS.items())
    (folder / "tenants.toml").write_text(f'default = "unscreened"\n[tenants]\n{named}')
    return {
        "folder": str(folder),
        "guard": {
            "url": guard,
            "model": "baton-demo",
            "dialect": "llama_guard",
            # A model that is no guard gives verdicts that are understood
            "extra_body": {"structured_outputs": {"choice": ["safe", "unsafe"]}},
        },
    }
