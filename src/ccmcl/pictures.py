"""A memory as a picture, the way the paper's Fig. 3 shows it: what is stored, and the images it becomes."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray
from torch import Tensor

from ccmcl.budget import MOST_SHOWN
from ccmcl.errors import InputError, printable
from ccmcl.files import write
from ccmcl.kinds import TITLES, Composite
from ccmcl.memory import Memory
from ccmcl.values import scaled

MOST_IN_A_ROW = 20
DPI, LEAST_DPI = 100, 20
MOST_SIDE, MOST_DRAWN = 60_000, 1 << 28
"""Pixels of a drawing's longer side, and in all."""


def draw_memory(memory: Memory, names: Sequence[str], path: Path | str) -> None:
    """Draw every class of a memory, one band a class, into a PNG file."""
    if not memory:
        raise InputError("There is no memory to draw: nothing is kept of any class.")
    panels = [
        (TITLES[kind], {label: kept.images() for label, kept in memory.items() if kept.kind == kind})
        for kind in dict.fromkeys(kept.kind for kept in memory.values())
    ]
    components = {label: kept.parts(MOST_SHOWN) for label, kept in memory.items() if isinstance(kept, Composite)}
    if components:
        panels.insert(0, ("components", components))
    write(Path(path), render(panels, names))


def render(panels: Sequence[tuple[str, dict[int, Tensor]]], names: Sequence[str]) -> bytes:
    """Lay panels side by side, their bands at the same height, and return the PNG."""
    mosaics = [{label: mosaic(scaled(images)) for label, images in bands.items()} for _, bands in panels]
    labels = sorted({label for bands in mosaics for label in bands})
    heights = [max(bands[label].shape[0] for bands in mosaics if label in bands) for label in labels]
    widths = [max(band.shape[1] for band in bands.values()) for bands in mosaics]
    pixel = max(0.016, 0.5 / max(heights))
    size = (
        pixel * sum(widths) + max(1.0, 0.1 * max(min(len(name), 40) for name in (*names, ""))) + 0.15 * len(widths),
        pixel * sum(heights) + 0.4 + 0.06 * len(heights),
    )
    dpi = min(DPI, MOST_SIDE / max(size), math.sqrt(MOST_DRAWN / (size[0] * size[1])))
    if dpi < LEAST_DPI:
        raise InputError("These images are too large to be drawn side by side.")
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, hspace=0.0, wspace=0.0)
    figure = Figure(figsize=size, dpi=dpi, layout=layout)
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(labels), len(panels), squeeze=False, height_ratios=heights, width_ratios=widths)
    for column, (title, _) in enumerate(panels):
        for row, label in enumerate(labels):
            axis = axes[row, column]
            axis.set_axis_off()
            band = mosaics[column].get(label)
            if band is not None:
                axis.imshow(band, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
                axis.set_anchor("W")
            if column == 0:
                name = names[label] if label < len(names) else str(label)
                axis.text(-0.02, 0.5, escaped(name), transform=axis.transAxes, ha="right", va="center", fontsize=8)
            if row == 0:
                axis.set_title(title, fontsize=9, loc="left")
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(file, format="png")
    return file.getvalue()


def escaped(text: str) -> str:
    """Keep a name a name: a dollar sign would start a formula."""
    shown = printable(text)
    return (shown if len(shown) <= 40 else shown[:39] + "…").replace("$", r"\$")


def mosaic(images: Float[Tensor, "q c h w"], space: int = 1) -> NDArray[np.float32]:
    """Set images side by side, in lines of at most twenty, with a thin white line between them; the first hundred."""
    images = images[:MOST_SHOWN]
    count, channels, height, width = images.shape
    columns = min(count, MOST_IN_A_ROW)
    lines = -(-count // columns)
    sheet = np.ones((lines * (height + space) - space, columns * (width + space) - space, channels), np.float32)
    for number, image in enumerate(images.permute(0, 2, 3, 1).numpy()):
        top, left = number // columns * (height + space), number % columns * (width + space)
        sheet[top : top + height, left : left + width] = image
    shown = sheet[:, :, :3] if channels >= 3 else sheet[:, :, 0]
    return np.ascontiguousarray(shown)
