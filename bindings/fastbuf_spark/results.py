"""What users' functions give: of a wrong thing the error names the function, and the line where it is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaMismatch
from fastbuf_spark.errors import ResultError, ResultTypeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


#: Of Spark's types, by name: the Arrow types whose values it takes for them.  Of others in here it takes none
_TAKEN = {
    "boolean": ("bool",),
    "tinyint": ("int8",),
    "smallint": ("int16",),
    "int": ("int32",),
    "bigint": ("int64",),
    "float": ("float",),
    "double": ("double",),
    "string": ("string", "large_string"),
    "binary": ("binary", "large_binary"),
}
_PLAIN = {name for names in _TAKEN.values() for name in names}


class Checked:
    """A function over record batches, whose results are checked to be record batches.

    Parameters
    ----------
    schema
        The columns that each must have at least: Spark, which takes them by position, fails with an index, or with the
        name of a method of its own.  Types are compared where both are plain ones.
    """

    def __init__(self, func: BatchFunction, schema: StructType | None = None) -> None:
        self.func = func
        fields = [] if schema is None else schema.fields
        self.columns = [field.name for field in fields]
        self._kinds = [field.dataType.simpleString() for field in fields]
        self._filled = [i for i, field in enumerate(fields) if not field.nullable]
        self.__name__ = getattr(func, "__name__", type(func).__name__)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        return self._whole(each(self.func, self.func(batches), pa.RecordBatch))

    def _whole(self, made: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = None
        for batch in made:
            if batch.num_rows and self.columns:
                if batch.schema != known:
                    known = None if self._odd(batch) else batch.schema
                for i in self._filled:
                    if batch.column(i).null_count:
                        name = self.columns[i]
                        raise SchemaMismatch(
                            f"{about(self.func)} gave nulls in column {name!r}, which its schema says has none"
                        )
            names = batch.schema.names
            if self.columns and len(set(names)) < len(names):  # Spark's reader of batches fails at them
                batch = batch.rename_columns([str(place) for place in range(len(names))])
            yield batch

    def _odd(self, batch: pa.RecordBatch) -> bool:
        """Whether a type differs in a column of nulls, of which Spark reads no value; an error if there are values."""
        if batch.num_columns < len(self.columns):
            given = batch.schema.names
            words = f"{about(self.func)} gave columns {given}; its schema has {self.columns}"
            counts = {"expected": str(len(self.columns)), "actual": str(len(given))}
            raise ResultError(words, "RESULT_COLUMN_SCHEMA_MISMATCH", counts)
        odd = False
        for name, kind, column in zip(self.columns, self._kinds, batch.columns, strict=False):
            found = str(column.type)
            if kind in _TAKEN and found in _PLAIN and found not in _TAKEN[kind]:
                odd = True
                if column.null_count < len(column):
                    words = (
                        f"{about(self.func)} gave column {name!r} as {found}; its schema has {kind}. Columns are taken "
                        f"by position: it gave {batch.schema.names}, and the schema has {self.columns}"
                    )
                    raise ResultError(words, "RESULT_COLUMN_TYPES_MISMATCH", {"mismatch": name})
        return odd


def each(func: Callable[..., Any], made: Any, kind: type | tuple[type, ...], several: Any = Iterable) -> Iterator[Any]:
    """What ``func`` gave, one after the other.

    Raises
    ------
    SchemaMismatch
        It is not a ``several``, or has something else than a ``kind``.
    """
    if not isinstance(made, several):
        raise wrong(func, _named(made), kind, "an iterator of ")
    with _LineOfStopIteration():  # and not ``except``, which would be the line that Spark shows of this function
        for item in made:
            if not isinstance(item, kind):
                listed = isinstance(made, Iterator | list | tuple)
                gave = f"an iterator with {_named(item)}" if listed else _named(made)
                raise wrong(func, gave, kind, "an iterator of ")
            yield item


class _LineOfStopIteration:
    """Gives the error of a StopIteration that left a generator the frames that raised it.

    Python has them only in the error's cause, and Spark, which shortens tracebacks, leaves causes out.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, frames: TracebackType | None) -> None:
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
            error.__traceback__ = _followed(frames, error.__cause__.__traceback__)


def _followed(first: TracebackType | None, second: TracebackType | None) -> TracebackType | None:
    """The frames of two tracebacks as one."""
    if first is None:
        return second
    return TracebackType(_followed(first.tb_next, second), first.tb_frame, first.tb_lasti, first.tb_lineno)


def one(func: Callable[..., Any], made: Any, kind: type) -> Any:
    """What ``func`` gave; SchemaMismatch unless it is of ``kind``."""
    if not isinstance(made, kind):
        raise hints_lack(func, kind) if inspect.isgenerator(made) else wrong(func, _named(made), kind)
    return made


def hints_lack(func: Callable[..., Any], kind: type) -> SchemaMismatch:
    """The error for a generator whose hints do not say that it is one: as in Spark, one that lacks is as all."""
    words = (
        f"{about(func)} gave a generator: it must give a {_type(kind)}, or, unless it is of cogroup, say by its hints "
        "that it takes and gives iterators: all parameters, the key too, and the result have hints then, those of rows "
        "Iterator[...]"
    )
    return _of_result(kind, "generator", words)


def wrong(func: Callable[..., Any], gave: str, kind: type | tuple[type, ...], article: str = "a ") -> SchemaMismatch:
    """The error for a function that gave something else than it must."""
    wanted = kind[0] if isinstance(kind, tuple) else kind
    return _of_result(wanted, gave, f"{about(func)} gave {gave}: it must give {article}{_type(wanted)}")


def _of_result(wanted: type, gave: str, words: str) -> SchemaMismatch:
    return ResultTypeError(words, "UDF_RETURN_TYPE", {"expected": _type(wanted), "actual": gave})


def about(func: Callable[..., Any]) -> str:
    """A function as errors name it, with the place of its definition."""
    while isinstance(func, partial) or type(func).__module__.startswith("fastbuf_spark."):
        inner = getattr(func, "func", None)
        if inner is None:
            break
        func = inner
    func = inspect.unwrap(func)
    name = getattr(func, "__name__", type(func).__name__)
    code = getattr(func, "__code__", None) or getattr(type(func).__call__, "__code__", None)
    return f"the function '{name}'" + (f" ({code.co_filename}:{code.co_firstlineno})" if code else "")


def _named(value: Any) -> str:
    return "None" if value is None else f"a {_type(type(value))}"


def _type(kind: type) -> str:
    package = kind.__module__.split(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"
