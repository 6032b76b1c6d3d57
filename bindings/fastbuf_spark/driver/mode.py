"""The mode of an exchange: what is asked for, else what the session says, else blocking."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastbuf.errors import PreflightError


def choose(asked: str, session: str, obstacles: Callable[[], Iterable[str]]) -> str:
    """``"pipelined"`` or ``"blocking"``.

    Parameters
    ----------
    asked
        The verb's ``mode``.
    session
        ``spark.fastbuf.mode``, or that of the verb's ``conf``: what ``"auto"`` means.
    obstacles
        Tells why the exchange cannot be pipelined here; asked only if it would be.

    Raises
    ------
    PreflightError
        It would be pipelined, and cannot.
    """
    wanted, whose = (session, "spark.fastbuf.mode=pipelined") if asked == "auto" else (asked, f"mode='{asked}'")
    if wanted != "pipelined":
        return "blocking"
    reasons = list(obstacles())
    if reasons:
        raise PreflightError(f"{whose} cannot run: {'; '.join(reasons)}")
    return "pipelined"
