"""GET /version, as vLLM's server has it."""

from fastapi import APIRouter, Request
from vllm.version import __version__ as vllm_version

from api.identity.rights import Right
from api.identity.route_rights import needs
from cluster.repository import own_version

router = APIRouter()


@router.get("/version")
@needs(Right.INFERENCE)
async def version(request: Request) -> dict[str, str]:
    """Tell the versions of Baton and of the vLLM that renders prompts and parses answers."""
    return {"version": own_version(), "vllm": vllm_version}
