"""What of a text is shown that comes in parts."""

from collections.abc import Iterable

from api.safety.pieces import Piece, PieceQueue
from api.safety.scans.screened_text import ScreenedText


def shown_parts(screened: ScreenedText, parts: Iterable[str]) -> list[str]:
    """What is shown with each part, and at the end."""
    queue, shown = PieceQueue(lambda text: []), list[str]()
    for part in parts:
        queue.put(Piece(part, [0]))
        screened.feed(part)
        shown.append("".join(piece.text for piece in queue.release(screened.decided_to, screened.masks)))
    queue.put(Piece("", [], None, "stop"))
    screened.finish()
    if screened.cut is not None:
        rest = queue.cut(screened.cut.begin, screened.masks)
    else:
        rest = queue.release(screened.decided_to, screened.masks)
    return [*shown, "".join(piece.text for piece in rest)]
