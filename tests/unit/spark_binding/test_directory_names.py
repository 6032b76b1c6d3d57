"""Directories named by values, as one worker writes them and the driver of another job reads them."""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import types as T

from fastbuf_spark.driver.splits import File, partition_types
from fastbuf_spark.worker.writing import folder_of


def test_decimals_have_no_exponents() -> None:
    """As Spark writes them; a reader that infers types takes the others for text, or refuses them."""
    values = [Decimal("0E-10"), Decimal("0.0000001"), Decimal("-12.50"), Decimal(7)]
    names = [folder_of([("d", value)]) for value in values]
    assert names == ["d=0.0000000000/", "d=0.0000001/", "d=-12.50/", "d=7/"]
    texts = [name.removeprefix("d=").rstrip("/") for name in names]
    files = [File(name, 1, 0, (("d", text),)) for name, text in zip(names, texts, strict=True)]
    assert partition_types(files, True, {}) == {"d": T.DoubleType()}
