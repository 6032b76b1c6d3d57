"""Users' functions of a window: rows as Arrow tables, pandas or polars frames, and what they give as Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf_spark.results import about
from fastbuf_spark.schema import conform

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf_spark.worker.pandas_verbs import PandasRules

NO_TIME = "__no_time"  #: column of a time that no row has, for windows that go by none


@dataclass(frozen=True)
class Applied:
    """Makes what :func:`fastbuf.event_time.work.apply_in_arrow` gives; ``form``: "arrow", "pandas" or "polars"."""

    func: Any
    form: str
    schema: pa.Schema
    rules: PandasRules | None

    def __call__(self) -> Any:
        from fastbuf.event_time.work import apply_in_arrow

        return apply_in_arrow(self._called, self.schema)

    def _called(self, key: Any, window: Any, table: pa.Table) -> pa.Table:
        if NO_TIME in table.column_names:
            table = table.drop_columns([NO_TIME])
        result: pa.Table = getattr(self, f"_{self.form}")(key, window, table)
        return result

    def _arrow(self, key: Any, window: Any, table: pa.Table) -> pa.Table:
        return self._conformed(self.func(key, window, table))

    def _pandas(self, key: Any, window: Any, table: pa.Table) -> pa.Table:
        import pyarrow as pa

        from fastbuf_spark.worker.pandas_verbs import Frames, Results

        assert self.rules is not None
        frame = Frames(self.rules).converted(table)
        results = Results(self.rules, self.func)
        answer = self.func(tuple(each.as_py() for each in key), window, frame)
        return pa.concat_tables([self.schema.empty_table(), *results.add(answer), *results.rest()])

    def _polars(self, key: Any, window: Any, table: pa.Table) -> pa.Table:
        import polars as pl

        answer = self.func(tuple(each.as_py() for each in key), window, pl.from_arrow(table))
        return self._conformed(answer.to_arrow() if hasattr(answer, "to_arrow") else answer)

    def _conformed(self, table: Any) -> pa.Table:
        import pyarrow as pa

        if not hasattr(table, "to_batches"):
            raise TypeError(f"{about(self.func)} must return a table, not a {type(table).__name__}")
        batches = [conform(batch, self.schema, about(self.func)) for batch in table.to_batches()]
        return pa.Table.from_batches(batches, self.schema)
