"""The file system of a table's files, by the options that deltalake takes to open the table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

#: Arguments of pyarrow's S3FileSystem, and deltalake's names of the options, which may begin with ``aws_``
_S3 = {
    "access_key": ("access_key_id",),
    "secret_key": ("secret_access_key",),
    "session_token": ("session_token", "token"),
    "endpoint_override": ("endpoint_url", "endpoint"),
    "region": ("region", "default_region"),
    "anonymous": ("skip_signature",),
    "force_virtual_addressing": ("virtual_hosted_style_request",),
}
_FLAGS = ("anonymous", "force_virtual_addressing")
_TRUE = ("true", "1", "yes", "y", "on")  # for the crate object_store, which reads them in deltalake


def store_of(uri: str, options: Mapping[str, str] | None) -> Any | None:
    """The store of a URI, as the workers read and write it; None: the options say nothing of it, or it is none of S3's.

    What the options leave out comes from the environment, as for a URI alone.

    Examples
    --------
    >>> store_of("s3://bucket/table", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}).region
    'us-east-1'
    >>> store_of("s3://bucket/table", {"timeout": "30s"}) is None
    True
    """
    scheme, _, rest = uri.partition("://")
    if not options or scheme.lower() not in ("s3", "s3a"):
        return None
    given = {str(name).lower().removeprefix("aws_"): value for name, value in options.items()}
    arguments: dict[str, Any] = {}
    for argument, names in _S3.items():
        values = [given[name] for name in names if given.get(name)]
        if values:
            arguments[argument] = values[0].lower() in _TRUE if argument in _FLAGS else values[0]
    if not arguments:
        return None
    from pyarrow import fs

    if "region" not in arguments:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if region or "endpoint_override" in arguments:
            arguments["region"] = region or "us-east-1"
        else:
            arguments["region"] = fs.resolve_s3_region(rest.partition("/")[0])
    try:  # as by a URI alone: a small file is one request, and never an upload that somebody left
        return fs.S3FileSystem(**arguments, allow_delayed_open=True)
    except TypeError:  # an older pyarrow
        return fs.S3FileSystem(**arguments)
