"""Options and credentials of stores: as deltalake takes them, from a job's settings or from Spark's own for S3."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastbuf_spark.pyspark_private import has_setting
from fastbuf_spark.worker.stores import patient

if TYPE_CHECKING:
    from fastbuf_spark.conf import ShuffleConf

#: A function that returns the options for a URI, under the names that deltalake has for them
Storage = Callable[[str], Mapping[str, str]]

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

#: deltalake's options, by names of Hadoop's settings behind ``fs.s3a.``
_S3A = {
    "AWS_ACCESS_KEY_ID": "access.key",
    "AWS_SECRET_ACCESS_KEY": "secret.key",
    "AWS_SESSION_TOKEN": "session.token",
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_REGION": "endpoint.region",
}
_AMAZONS = re.compile(r"(?:https?://)?s3(?:[.-]([a-z0-9-]+))?\.amazonaws\.com/?")  #: an endpoint that says a region

#: Schemes of Azure's: pyarrow's, fsspec's, Hadoop's older ones
AZURE = ("abfs", "abfss", "az", "wasb", "wasbs")
#: Arguments of pyarrow's AzureFileSystem, and names of deltalake's options, which may begin with ``azure_storage_``
_AZURE = {
    "account_key": ("account_key", "access_key", "key"),
    "client_id": ("client_id",),
    "client_secret": ("client_secret",),
    "tenant_id": ("tenant_id", "authority_id"),
}
#: Names in a connection string, by those of the options
_SAID = {"account_name": "AccountName", "account_key": "AccountKey"}


def environment_of_azure() -> dict[str, str]:
    """What the environment says of an account; pyarrow itself asks for ``AZURE_CLIENT_ID`` and the like."""
    return {name: value for name, value in os.environ.items() if name.startswith("AZURE_STORAGE_")}


def _of_azure(options: Mapping[str, str]) -> dict[str, str]:
    """Options by their names in small letters, without the prefix ``azure_`` or ``azure_storage_``."""
    begins = re.compile("azure_(storage_)?")
    return {begins.sub("", str(name).lower(), count=1): str(value) for name, value in options.items() if value}


def azure_of(uri: str, options: Mapping[str, str]) -> tuple[Any, str] | None:
    """The store of a URI of Azure's, and the container; None: the options say nothing of its account.

    A connection string is taken too.  Of another account than the URI's nothing is, and no SAS token: what pyarrow's
    client says of a request that fails has it in the request's URL.

    Examples
    --------
    >>> azure_of("abfss://c@acct.dfs.core.windows.net/a", {"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"})[1]
    'c'
    >>> azure_of("abfss://c@acct.dfs.core.windows.net/a", {"account_name": "other", "account_key": "a2V5"}) is None
    True
    """
    place = uri.partition("://")[2].partition("/")[0]
    container, at, host = place.rpartition("@")
    if not at:
        container, host = place, ""
    if bool(at) != ("." in host) or "." in container:  # pyarrow's own forms
        return None
    given = _of_azure(options)
    text = given.get("connection_string", "")
    parts = dict(part.partition("=")[::2] for part in text.split(";"))
    for name, of in _SAID.items():
        given.setdefault(name, parts.get(of, ""))
    account, _, domain = host.partition(".")
    account = account or given["account_name"]
    if not account or given["account_name"] not in ("", account):
        return None
    arguments: dict[str, Any] = {}
    for argument, names in _AZURE.items():
        if values := [given[name] for name in names if given.get(name)]:
            arguments[argument] = values[0]
    endpoint = given.get("endpoint") or parts.get("BlobEndpoint", "")
    if endpoint:
        scheme, _, authority = endpoint.rpartition("://")
        authority = authority.partition("/")[0].removeprefix(account)
        for of in ("blob", "dfs"):
            arguments[f"{of}_storage_scheme"] = scheme or "https"
            arguments[f"{of}_storage_authority"] = authority.replace(".blob.", f".{of}.")
    elif domain:
        inside = domain.partition(".")[2]
        arguments |= {f"{of}_storage_authority": f".{of}.{inside}" for of in ("blob", "dfs")}
    from pyarrow import fs

    try:
        return fs.AzureFileSystem(account, **arguments), container
    except (AttributeError, TypeError):  # an older pyarrow
        return None


def store_of(uri: str, options: Mapping[str, str] | None) -> Any | None:
    """The store of a URI, as the workers read and write it; None: the options say nothing of it, or it is not known.

    S3's and Azure's are.
    What the options leave out comes from the environment, as for a URI alone.

    Examples
    --------
    >>> store_of("s3://bucket/table", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}).region
    'us-east-1'
    >>> store_of("s3://bucket/table", {"timeout": "30s"}) is None
    True
    """
    scheme, _, rest = uri.partition("://")
    if options and scheme.lower() in AZURE:
        decisive = {"account_name", "connection_string", "endpoint"}.union(*_AZURE.values())
        azure = azure_of(uri, options) if decisive & set(_of_azure(options)) else None
        return azure and azure[0]
    if not options or scheme.lower() not in ("s3", "s3a", "s3n"):
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
        return patient(fs.S3FileSystem(**arguments, allow_delayed_open=True))
    except TypeError:  # an older pyarrow
        return patient(fs.S3FileSystem(**arguments))


def storage_of(spark: Any, conf: ShuffleConf | None) -> Storage:
    """What gives the options of a URI: a job's own settings, else those that the session has for Spark's reader of S3.

    Parameters
    ----------
    conf
        None: there are the session's alone.
    """
    options = dict(conf.storage_options) if conf is not None else {}
    is_local = re.compile("(?!.*://)|file:", re.I).match
    of_uri = functools.cache(functools.partial(of_session, spark))  # the session is asked once for a bucket
    return lambda uri: {} if is_local(uri) else options or of_uri("/".join(uri.split("/", 3)[:3]))


def of_session(spark: Any, uri: str) -> dict[str, str]:
    """deltalake's options for a URI of S3's, by the session's ``spark.hadoop.fs.s3a.*`` and ``fs.s3a.*``.

    Those of a bucket (``fs.s3a.bucket.NAME.*``) come first, as in Hadoop.
    """
    scheme, _, rest = uri.partition("://")
    if scheme.lower() not in ("s3", "s3a", "s3n") or not has_setting(spark, "fs.s3a."):
        return {}
    bucket = rest.partition("/")[0]
    settings = {name: str(value) for name, value in spark.conf.getAll.items() if "fs.s3a." in name}

    def setting(name: str) -> str:
        names = (f"{begin}fs.s3a.{of}{name}" for of in (f"bucket.{bucket}.", "") for begin in ("", "spark.hadoop."))
        return next((settings[each].strip() for each in names if settings.get(each)), "")

    options = {option: value for option, name in _S3A.items() if (value := setting(name))}
    endpoint = options.get("AWS_ENDPOINT_URL", "")
    if of_amazon := _AMAZONS.fullmatch(endpoint):
        del options["AWS_ENDPOINT_URL"]
        if of_amazon[1]:
            options.setdefault("AWS_REGION", of_amazon[1])
    elif endpoint:
        scheme = "http" if setting("connection.ssl.enabled").lower() == "false" else "https"
        options["AWS_ENDPOINT_URL"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        if options["AWS_ENDPOINT_URL"].startswith("http:"):
            options["AWS_ALLOW_HTTP"] = "true"
        if setting("path.style.access").lower() == "false":
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
    if "AnonymousAWSCredentialsProvider" in setting("aws.credentials.provider"):
        options["AWS_SKIP_SIGNATURE"] = "true"
    return options
