"""Names of layers: one for each module of a run, whichever rank has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from sqlalchemy import Connection

from floatscope import wire
from floatscope_server.database import upsert
from floatscope_server.models import LayerRow
from floatscope_server.store.layermap import LayerMap
from floatscope_server.store.ledger import KnownRun, KnownWriter, operands_json

__all__ = ["named_apart", "upsert_layers"]


def named_apart(
    run: KnownRun,
    writer: KnownWriter,
    layer: wire.Layer,
    table: Mapping[int, wire.Layer],
    map_of: Callable[[KnownWriter], LayerMap],
) -> wire.Layer:
    """``layer`` under the name that it has in the run: its own, or NAME@rankN where another rank means another module.

    Stages of a pipeline may all call their first module "0". What has the same name and another number of parameters
    on another rank of the same attempt is another module. Another number from a rank that has named it is the same
    module still: a lazy one has its parameters after the first forward pass only. ``map_of`` gives the layers that a
    writer has named.
    """
    apart = f"{layer.name}@rank{writer.rank}"
    if apart in run.names:
        return msgspec.structs.replace(layer, name=apart)
    index = run.names.get(layer.name)
    if index is None or table[index].parameters == layer.parameters:
        return layer
    if map_of(writer).has(layer.index, index):
        return layer
    # A later attempt may have changed the model: then the first of its ranks to name the layer says what it is.
    others = any(
        other.attempt == writer.attempt and other.rank != writer.rank and index in map_of(other).ours
        for other in run.writers.values()
    )
    return msgspec.structs.replace(layer, name=apart) if others else layer


def upsert_layers(connection: Connection, run: KnownRun, layers: Sequence[wire.Layer]) -> None:
    """Write ``layers``, which have the run's numbers."""
    statement = upsert(connection, LayerRow)
    renewed = ("module_type", "parameters", "order_no", "operands")
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["run_id", "idx"], set_={name: statement.excluded[name] for name in renewed}
        ),
        [
            {
                "run_id": run.id,
                "idx": layer.index,
                "name": layer.name,
                "module_type": layer.module_type,
                "parameters": layer.parameters,
                "order_no": layer.order,
                "operands": operands_json(layer),
            }
            for layer in layers
        ],
    )
