"""HTTP: what people say of a run: its tags, and whether lists show it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from sqlmodel import Session

from floatscope_server.audit import Actor, record
from floatscope_server.query.line import run_named
from floatscope_server.query.runs import run_list
from floatscope_server.responses import JSONText, Refusal
from floatscope_server.services import Running
from floatscope_server.store.lifecycle import ENDED

__all__ = ["MOST_TAGS", "router"]

router = APIRouter(prefix="/api/v1", tags=["runs"], default_response_class=JSONText)

MOST_TAGS = 16
_LONGEST = 40
"""Characters."""


def _tag(text: str) -> str:
    tag = " ".join(text.split())
    # Lists of tags are written with commas between them.
    if not tag or len(tag) > _LONGEST or not tag.isprintable() or "," in tag:
        raise ValueError(f"a tag has 1 to {_LONGEST} printable characters and no comma")
    return tag


Tag = Annotated[str, Field(max_length=1000), AfterValidator(_tag)]


class RunChange(BaseModel):
    """What is to change; what is left out or null stays as it is. ``tags`` are all that the run is to have."""

    model_config = ConfigDict(extra="forbid")

    tags: Annotated[list[Tag] | None, Field(max_length=100)] = None
    archived: bool | None = None


@router.patch("/runs/{run}")
async def change_run(run: str, wanted: RunChange, services: Running, actor: Actor) -> Response:
    """Tag a run, archive it or bring it back. One that goes on is not archived: what trains is for all to see."""
    tags = None if wanted.tags is None else list(dict.fromkeys(wanted.tags))
    if tags is not None and len(tags) > MOST_TAGS:
        raise Refusal(422, "too_many_tags", f"{len(tags)} tags on one run", f"{MOST_TAGS} is the most: remove some")

    def write(session: Session) -> list[dict[str, Any]]:
        found = run_named(session, run)
        if tags is not None and tags != found.tags:
            found.tags = tags
            record(session, actor, "run.tag", run, {"tags": tags})
        if wanted.archived is not None and wanted.archived != (found.archived_at is not None):
            if wanted.archived and found.state not in ENDED:
                raise Refusal(
                    409,
                    "run_is_live",
                    f"the run is {found.state}, so it stays in the list",
                    "archive it once its training has ended",
                )
            found.archived_at = services.store.now() if wanted.archived else None
            record(session, actor, "run.archive" if wanted.archived else "run.unarchive", run)
        session.add(found)
        session.flush()
        return run_list(session, [run])

    (item,) = await asyncio.to_thread(services.store.write, write)
    services.live.run_changed(run)
    return JSONText(item)
