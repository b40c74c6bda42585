"""`consumers/<name>.json`: what a reader has read for good, so that the log's retention waits for it.

{"kind": "messages", "offsets": {"<node>": {"e": epoch, "o": next offset}}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from spark.log.listing import VERSION, Position, Positions
from spark.log.plan import as_offset, of_offset


def tell(root: Path, name: str, kind: str, at: Mapping[str, Position]) -> None:
    """Replaces the file of *name*; it is there whole, or as it was."""
    folder = root / VERSION / "consumers"
    folder.mkdir(mode=0o750, exist_ok=True)
    text = json.dumps({"kind": kind, "offsets": as_offset(at)})
    write_whole(folder / f"{name}.json", text)


def told(root: Path, name: str) -> Positions:
    """What *name* has said last; nothing where it is not known."""
    try:
        said = json.loads((root / VERSION / "consumers" / f"{name}.json").read_text())
        return of_offset(said["offsets"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def write_whole(path: Path, text: str) -> None:
    """A new file under the name *path*, synced, in one rename."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
