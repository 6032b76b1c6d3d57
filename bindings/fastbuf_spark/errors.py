"""Errors of arguments and results for which Spark has a class: they are of that class too, and name Spark's condition.

So ``except`` clauses that were written for Spark's verbs catch them.  Each takes a message, and the condition and its
parameters, as PySpark's exceptions do.
"""

from __future__ import annotations

from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkRuntimeError,
    PySparkTypeError,
    PySparkValueError,
)

from fastbuf.errors import ConfigError, SchemaError, SchemaMismatch


class ArgumentError(PySparkValueError, ConfigError):
    """An argument's value is not possible."""


class ArgumentTypeError(PySparkTypeError, ConfigError):
    """An argument is of another type."""

    @classmethod
    def of(cls, message: str, name: str, wanted: str, value: object) -> ArgumentTypeError:
        """The error for an argument of this name, with Spark's condition for such ones."""
        parameters = {"arg_name": name, "expected_type": wanted, "arg_type": type(value).__name__}
        return cls(message, "NOT_EXPECTED_TYPE", parameters)


class PartitionCountError(IllegalArgumentException, ConfigError):
    """A number of partitions is out of range."""


class ColumnError(AnalysisException, ConfigError):
    """Spark does not find a column."""

    @classmethod
    def of(cls, message: str, error: AnalysisException) -> ColumnError:
        """The error with Spark's own condition."""
        condition = error.getCondition()
        return cls(message.replace(f"[{condition}] ", ""), condition, error.getMessageParameters())


class SchemaTypeError(PySparkTypeError, SchemaError):
    """A schema is no schema, or has a type that Spark's Python functions do not take."""


class ResultTypeError(PySparkTypeError, SchemaMismatch):
    """A user's function gave an object of another type."""


class ResultError(PySparkRuntimeError, SchemaMismatch):
    """A user's function gave other columns than its schema has."""
