"""What users' functions give: of a wrong thing the error names the function, and the line where it is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError, SchemaMismatch
from fastbuf_spark.errors import ResultError, ResultTypeError
from fastbuf_spark.schema import arrow_schema, required, without_nulls
from fastbuf_spark.tracebacks import joined, walk

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from fastbuf_spark.schema import BatchFunction


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


ANY_ITERABLE = "spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled"


def name_of(func: Any) -> str:
    """A function's name, or that of its class."""
    return str(getattr(func, "__name__", type(func).__name__))


class Checked:
    """A function over record batches, whose results are checked to be record batches.

    Parameters
    ----------
    schema
        The columns that each must have at least: Spark, which takes them by position, fails with an index, or with the
        name of a method of its own.  Types are compared where both are plain ones.
    several
        What it gives them in, as :func:`iterables` says.
    """

    def __init__(self, func: BatchFunction, schema: StructType | None = None, several: Any = Iterable) -> None:
        self.func = func
        self._several = several
        fields = [] if schema is None else schema.fields
        self.columns = [field.name for field in fields]
        self._kinds = [field.dataType.simpleString() for field in fields]
        self._filled = _filled(schema)
        self.__name__ = name_of(func)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        return self._whole(each(self.func, self.func(batches), pa.RecordBatch, self._several, ANY_ITERABLE))

    def _whole(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last_good = None
        for batch in batches:
            batch = _readable(batch)
            if batch.num_rows and self.columns:
                if batch.schema != last_good:
                    last_good = None if self._odd(batch) else batch.schema
                without_nulls(batch, self._filled, about(self.func))
            names = batch.schema.names
            if self.columns and len(set(names)) < len(names):  # Spark's reader of batches fails at them
                batch = batch.rename_columns([str(place) for place in range(len(names))])
            yield batch

    def _odd(self, batch: pa.RecordBatch) -> bool:
        """Whether a type differs in a column of nulls, of which Spark reads no value; an error if there are values."""
        if batch.num_columns < len(self.columns):
            names = batch.schema.names
            words = f"{about(self.func)} gave columns {names}; its schema has {self.columns}"
            counts = {"expected": str(len(self.columns)), "actual": str(len(names))}
            raise ResultError(words, "RESULT_COLUMN_SCHEMA_MISMATCH", counts)
        odd = False
        for name, kind, column in zip(self.columns, self._kinds, batch.columns, strict=False):
            actual = str(column.type)
            if kind in _TAKEN and actual in _PLAIN and actual not in _TAKEN[kind]:
                odd = True
                if column.null_count < len(column):
                    words = (
                        f"{about(self.func)} gave column {name!r} as {actual}; its schema has {kind}. Columns are "
                        f"taken by position: it gave {batch.schema.names}, and the schema has {self.columns}"
                    )
                    raise ResultError(words, "RESULT_COLUMN_TYPES_MISMATCH", {"mismatch": name})
        return odd


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with plain columns for categories and large lists, which pandas and polars give and Spark lacks."""
    import pyarrow as pa

    for place, field in enumerate(batch.schema):
        if pa.types.is_dictionary(field.type):
            plain = field.type.value_type
        elif pa.types.is_large_list(field.type):
            plain = pa.list_(field.type.value_field)
        else:
            continue
        column = batch.column(place)
        column = column.dictionary_decode() if pa.types.is_dictionary(field.type) else column.cast(plain)
        batch = batch.set_column(place, field.with_type(plain), column)
    return batch


def _filled(schema: StructType | None) -> dict[int, pa.Field]:
    """The columns in which something may not be null."""
    if schema is None:
        return {}
    try:
        return required(arrow_schema(schema, "UTC"))
    except (SchemaError, ValueError):  # Spark says itself which type it does not read
        return {}


def iterables(spark: Any) -> Any:
    """What functions over batches give them in: with Spark's default all that ``iter`` takes, else an Iterator."""
    return Iterable if str(spark.conf.get(ANY_ITERABLE, "true")).strip().lower() == "true" else Iterator


def each(
    func: Callable[..., Any], result: Any, kind: type | tuple[type, ...], several: Any = Iterable, setting: str = ""
) -> Iterator[Any]:
    """What ``func`` gave, one after the other; ``setting``: that of Spark's by which ``several`` is an Iterator.

    Raises
    ------
    SchemaMismatch
        It is not a ``several``, or has something else than a ``kind``.
    """
    # An object may also be iterated over by its ``__getitem__``
    if not (isinstance(result, several) or (several is Iterable and hasattr(type(result), "__getitem__"))):
        strict = f": an Iterator, as {setting} is false" if setting and several is Iterator else ""
        raise SchemaMismatch(f"{wrong(func, _named(result), kind, 'an iterator of ')}{strict}")
    with _LineOfStopIteration():  # and not ``except``, which would be the line that Spark shows of this function
        for item in result:
            if not isinstance(item, kind):
                listed = isinstance(result, Iterator | list | tuple)
                gave = f"an iterator with {_named(item)}" if listed else _named(result)
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
            error.__traceback__ = joined([*walk(frames), *walk(error.__cause__.__traceback__)])


def one(func: Callable[..., Any], result: Any, kind: type) -> Any:
    """What ``func`` gave; SchemaMismatch unless it is of ``kind``."""
    if not isinstance(result, kind):
        raise hints_lack(func, kind) if inspect.isgenerator(result) else wrong(func, _named(result), kind)
    return result


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
