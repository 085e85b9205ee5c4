"""GET / and the files of the page below /page/: the page to look at. Each file has a path of its own, and there is no
other path, so no path can lead out of the folder.
"""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response

from api.web.page_files import PageFile, PageFiles


def page_router(files: PageFiles) -> APIRouter:
    router = APIRouter()
    for file in files.files:
        router.add_route(file.path, _answering(file), methods=["GET"])
    return router


def _answering(file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if file.is_known(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=file.headers)
        return Response(file.body, headers=file.headers)

    return answer
