"""What pipelines have and streams have not, since their rows do not end: what to write instead."""

from __future__ import annotations

from typing import Any, NoReturn

_FUNCTION = "write_stream(fbs.to_function(func), checkpoint=...) gives a function of yours the rows of each checkpoint"
_MEMORY = "its rows do not end; write_stream(fbs.to_memory(), checkpoint=...) keeps them on the driver"
_WINDOW = "say which rows are one group: .window(...), .session(...) or .global_window()"
_STATE = "or .transform_with_state(...) for what each key has seen so far"
_EPOCH = ".shuffle(...).map_in_arrow or .map_in_pandas have all rows of a key between two checkpoints"

OF_STREAMS = {
    **dict.fromkeys(("to_df", "collect", "to_arrow", "count"), _MEMORY),
    "write_parquet": "write_stream(fbs.to_parquet(path), checkpoint=...)",
    "write_delta": "write_stream(fbs.to_delta(path), checkpoint=...)",
    "write_ipc": f"write_stream(fbs.to_parquet(path), checkpoint=...) writes files; {_FUNCTION}",
    "write_iceberg": f"write_stream(fbs.to_delta(path), checkpoint=...) writes a table; {_FUNCTION}",
    "broadcast": "each row goes to one task, by .shuffle(...) or .rebalance(); what all need, give to their function",
    "random_shuffle": "its rows do not end, so no order of all is ever known; .rebalance() spreads them evenly",
    "start_new_chain": "functions of a stage share its tasks; .rebalance() puts what follows into tasks of its own",
    "foreachBatch": "write_stream(fbs.to_function(func), checkpoint=...)",
    "writeStream": "write_stream(sink, checkpoint=...)",
}
OF_GROUPS = {
    **dict.fromkeys(("apply_in_arrow", "apply_in_pandas", "apply_in_polars"), f"{_WINDOW}, {_STATE}; {_EPOCH}"),
    "agg_arrow": f"{_WINDOW}, {_STATE}",
    "cogroup": "interval_join and window_join join two streams",
}


def refuse(owner: Any, words: str, name: str, instead: dict[str, str]) -> NoReturn:
    """AttributeError, with what to write instead where that is known."""
    said = (
        f"{words} no {name}: {instead[name]}"
        if name in instead
        else f"{type(owner).__name__} has no attribute {name!r}"
    )
    raise AttributeError(said, name=name, obj=owner)
