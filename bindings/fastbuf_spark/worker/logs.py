"""Spark's logs of its Python workers name the user's function, and not what fastbuf calls it from."""

from __future__ import annotations

import inspect
from types import FrameType

from fastbuf_spark import pyspark_private

_OURS = ("pyspark.", "fastbuf.", "fastbuf_spark.")  #: packages whose frames stand around the user's function
_LOGGING = ("logging", "pyspark.logger.", __name__)  #: and between it and :func:`context`


def name_the_users_function() -> None:
    """To be called within a task.  Spark takes the outermost frame that is not its own, which is one of fastbuf's."""
    pyspark_private.name_in_logs(context)


def context() -> dict[str, str]:
    """What Spark's ``context_provider`` gives: the name of the function that logs, and of its class if it has one."""
    frame = inspect.currentframe()
    while frame is not None and _module(frame).startswith(_LOGGING):
        frame = frame.f_back
    while frame is not None and (_is_ours(frame) or (frame.f_back is not None and not _is_ours(frame.f_back))):
        frame = frame.f_back
    if frame is None:
        return {}
    names = {"func_name": frame.f_code.co_name}
    if "self" in frame.f_locals:
        names["class_name"] = type(frame.f_locals["self"]).__name__
    elif "cls" in frame.f_locals:
        names["class_name"] = frame.f_locals["cls"].__name__
    return names


def _is_ours(frame: FrameType) -> bool:
    return _module(frame).startswith(_OURS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
