"""The binding's serializer in the place of PySpark's: RDDs written, read, cached and shuffled with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.serializers import AutoBatchedSerializer

from fastbuf_spark import ObjectSerializer

pytestmark = pytest.mark.spark


def test_rdd(spark: Any) -> None:
    sc = spark.sparkContext
    kept, unbatched = sc.serializer, sc._unbatched_serializer
    # As SparkContext(serializer=ObjectSerializer()) sets them; the tests share one context.
    sc._unbatched_serializer = ObjectSerializer()
    sc.serializer = AutoBatchedSerializer(sc._unbatched_serializer)
    try:
        rdd = sc.parallelize([(i % 5, np.full(1000, i)) for i in range(40)], 3).cache()
        assert rdd.map(lambda pair: int(pair[1].sum())).collect() == [i * 1000 for i in range(40)]
        sums = rdd.partitionBy(4).mapValues(lambda array: int(array[0])).reduceByKey(lambda a, b: a + b)
        assert dict(sums.collect()) == {k: sum(range(k, 40, 5)) for k in range(5)}
        assert isinstance(rdd._jrdd_deserializer.serializer, ObjectSerializer)
    finally:
        sc.serializer, sc._unbatched_serializer = kept, unbatched
