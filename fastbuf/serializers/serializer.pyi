from typing import Any

from fastbuf.serializers.schema import Schema

class Serializer:
    kind: str
    schema: Schema | None
    fingerprint: int
    checksum: bool
    def encode(self, record: Any) -> bytes: ...
    def decode(self, payload: Any) -> Any: ...
