"""Uploads to a store that a killed process did not end: no reader sees their parts, and the store is paid for them."""

from __future__ import annotations

from typing import Any

from fastbuf_spark.worker.stores import UPLOAD_BYTES, kinds


def end_uploads(system: Any, path: str) -> str:
    """End the uploads of files below a path, of a write that is over.

    For S3 with boto3, which pyarrow's file system cannot do.  It takes the credentials that the file system has.

    Parameters
    ----------
    system
        A file system of pyarrow.
    path
        A directory, beginning with the bucket.

    Returns
    -------
    Words for the log: what was ended, or why nothing could be.  Empty: there was no upload to end, or the store is not
    S3.  Google's and Azure's stores drop such uploads themselves after a week.

    Notes
    -----
    Nothing is raised: what cannot be ended is told, with what ends it.
    """
    if not kinds(system) & {"s3", "s3a"}:
        return ""
    bucket, _, prefix = path.partition("/")
    try:
        ended = _end(_client(system), bucket, f"{prefix.rstrip('/')}/")
    except Exception as error:  # it is told, and does not end the write that found these uploads of an earlier one
        return (
            f". Uploads of its tasks that had not ended (of files above {UPLOAD_BYTES >> 20} MiB) are seen by nobody "
            f"and paid for; they were not ended, since {_reason(error)}: pip install 'fastbuf[s3]' lets the next write "
            "do it, or a rule of the bucket (AbortIncompleteMultipartUpload), or aws s3api list-multipart-uploads "
            f"--prefix {prefix} and abort-multipart-upload"
        )
    return f", and ended {ended} uploads of it" if ended else ""


def _client(system: Any) -> Any:
    """A client of boto3 for the same store.

    Raises
    ------
    TypeError
        It is none of pyarrow's for S3.
    """
    from pyarrow import fs

    while isinstance(system, fs.SubTreeFileSystem):
        system = system.base_fs
    if not isinstance(system, fs.S3FileSystem):
        raise TypeError(f"it is a {type(system).__name__}, not pyarrow's S3FileSystem")
    given = system.__reduce__()[1][0]
    if given["role_arn"]:
        raise TypeError("its credentials are a role's")
    import boto3
    import botocore

    address = given["endpoint_override"]
    if address and "://" not in address:
        address = f"{given['scheme']}://{address}"
    signs = {"signature_version": botocore.UNSIGNED} if given["anonymous"] else {}
    return boto3.client(
        "s3",
        region_name=given["region"] or None,
        endpoint_url=address or None,
        aws_access_key_id=given["access_key"],
        aws_secret_access_key=given["secret_key"],
        aws_session_token=given["session_token"] or None,
        config=botocore.config.Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 3}, **signs),
    )


def _end(client: Any, bucket: str, prefix: str) -> int:
    ended = 0
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
        for upload in page.get("Uploads", ()):
            client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
            ended += 1
    return ended


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "boto3 is not installed"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
