"""Images of a memory as small pictures inside a page: a row for each class."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from ccmcl.errors import InputError
from ccmcl.kinds import TITLES, Composite
from ccmcl.memory import Memory
from ccmcl.memory_file import picture_shape
from ccmcl.store import RunFolder
from ccmcl.values import visible

COLUMNS = 8
"""Images of a class that are shown."""
MOST_CLASSES = 100
GAP, GREY = 1, 128
QUALITY = 82


def sheet(rows: Sequence[UInt8[Tensor, "n c h w"]]) -> str:
    """Set images into rows with thin lines between, and return them as the address of a picture."""
    _, channels, height, width = rows[0].shape
    columns = max(len(images) for images in rows)
    shape = (len(rows) * (height + GAP) - GAP, columns * (width + GAP) - GAP, min(channels, 3))
    canvas = np.full(shape, GREY, np.uint8)
    for line, images in enumerate(rows):
        for place, image in enumerate(images.permute(0, 2, 3, 1).numpy()):
            top, left = line * (height + GAP), place * (width + GAP)
            canvas[top : top + height, left : left + width] = image[:, :, :3]
    shown = canvas if channels >= 3 else canvas[:, :, 0]
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(shown)).save(file, "WEBP", quality=QUALITY)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def pictures(folder: RunFolder) -> dict[str, Any] | None:
    """Draw what a run remembers: what it stores, what that becomes, and how it formed; None if nothing is kept."""
    if not folder.memory_file.is_file():
        return None
    memory, names = folder.memory()
    if not memory:
        return None
    memory = Memory({label: memory[label] for label in list(memory)[:MOST_CLASSES]})
    first = next(iter(memory.values())).images()
    kinds = {kept.kind for kept in memory.values()}
    found: dict[str, Any] = {
        "height": first.shape[2],
        "width": first.shape[3],
        "classes": [names[label] if label < len(names) else str(label) for label in memory],
        "title": TITLES[kinds.pop()] if len(kinds) == 1 else "images",
        "images": sheet([visible(kept.images()[:COLUMNS]) for kept in memory.values()]),
        "columns": max(min(COLUMNS, len(kept.images())) for kept in memory.values()),
    }
    components = [kept.parts(COLUMNS) for kept in memory.values() if isinstance(kept, Composite)]
    if len(components) == len(memory):
        found["components"] = sheet([visible(stretched(part)) for part in components])
        found["component_columns"] = max(min(COLUMNS, len(part)) for part in components)
    return found


def forming(folder: RunFolder, memory: Memory) -> dict[str, Any] | None:
    """Draw how the images of a memory formed, at every moment that was kept; None where none was."""
    memory_labels = list(memory)[:MOST_CLASSES]
    latest: dict[int, dict[int, Tensor]] = {}
    for (_, label), seen in folder.forming().items():  # of a class met twice, the last
        latest[label] = seen
    if not latest or any(label not in latest for label in memory_labels):
        return None
    steps = sorted(set.intersection(*(set(seen) for seen in latest.values())))
    if not steps:
        return None
    shapes = {tuple(images.shape[1:]) for seen in latest.values() for images in seen.values()}
    if shapes != {picture_shape(memory[label]) for label in memory_labels}:
        raise InputError("What formed is not of the size of what was formed.")
    sheets = [sheet([latest[label][step] for label in memory_labels]) for step in steps]
    return {"steps": steps, "sheets": sheets}


def stretched(images: Tensor) -> Tensor:
    """Stretch each image to [0, 1]: components may have any values."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp(min=1e-12)


def drawn(folder: RunFolder, room: int) -> dict[str, Any] | None:
    """Draw all that fits into so many characters, what is remembered before how it formed."""
    damaged = (InputError, ValueError, OSError)  # or of no shape that can be drawn
    try:
        found = pictures(folder)
    except damaged:
        return None
    if found is None or len(str(found)) > room:
        return None
    with suppress(*damaged):
        formed = forming(folder, folder.memory()[0])
        if formed is not None and len(str(found)) + len(str(formed)) <= room:
            found["forming"] = formed
    return found
