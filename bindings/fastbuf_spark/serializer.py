"""A serializer for PySpark that uses fastbuf's pickles."""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle
from pyspark.serializers import FramedSerializer

from fastbuf.serializers import PickledSerializer
from fastbuf_spark.codec import CLOUDPICKLE


class ObjectSerializer(FramedSerializer):
    """Serializer of any picklable object, for ``SparkContext(serializer=...)`` and wherever PySpark takes one.

    It uses pickle protocol 5, and PySpark's cloudpickle if plain pickle fails, or has names of ``__main__``, which the
    workers do not know. NumPy arrays and other buffers of 4 KiB or more
    are stored outside of the pickle and copied once on each side. In a stream each object has its length before it, as
    with PySpark's serializers, and PySpark can batch it: ``SparkContext(serializer=ObjectSerializer(), batchSize=0)``.

    Examples
    --------
    >>> ObjectSerializer().loads(ObjectSerializer().dumps({"a": 1}))
    {'a': 1}
    """

    def __init__(self) -> None:
        super().__init__()
        self._pickled = PickledSerializer(cloudpickle=CLOUDPICKLE)

    def dumps(self, obj: Any) -> bytes:
        """The payload of one object.

        Raises
        ------
        RecordError
            Neither pickle nor cloudpickle can pickle it; the message has both reasons.
        """
        payload = self._pickled.encode(obj)
        return cloudpickle.dumps(obj, 5) if b"__main__" in payload else payload

    def loads(self, obj: bytes) -> Any:
        """The object of one payload, or of a plain pickle (made by the JVM)."""
        return self._pickled.decode(obj)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectSerializer)

    def __hash__(self) -> int:
        return hash(ObjectSerializer)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectSerializer, ()

    def __repr__(self) -> str:
        return "ObjectSerializer()"
