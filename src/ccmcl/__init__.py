"""Continual learning with a memory that fits in kilobytes.

``ContinualClassifier`` is the everyday interface; ``Experiment`` and ``run`` are for whole data sets.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ccmcl._version import __version__

if TYPE_CHECKING:
    from ccmcl.budget import Budget
    from ccmcl.classifier import ContinualClassifier
    from ccmcl.data import Dataset, Images, load
    from ccmcl.errors import InputError, StorageError
    from ccmcl.evaluate import Scores
    from ccmcl.experiment import Experiment
    from ccmcl.kinds import Composite, Exemplars, Pixels
    from ccmcl.memory import Memory
    from ccmcl.memory_file import load_memory, save_memory
    from ccmcl.methods import METHODS
    from ccmcl.nets import ConvNet
    from ccmcl.running import run
    from ccmcl.store import RunFolder
    from ccmcl.stream import Experience, Stream

HOMES = {
    "budget": ["Budget"],
    "classifier": ["ContinualClassifier"],
    "data": ["Dataset", "Images", "load"],
    "errors": ["InputError", "StorageError"],
    "evaluate": ["Scores"],
    "experiment": ["Experiment"],
    "kinds": ["Composite", "Exemplars", "Pixels"],
    "memory": ["Memory"],
    "memory_file": ["load_memory", "save_memory"],
    "methods": ["METHODS"],
    "nets": ["ConvNet"],
    "running": ["run"],
    "store": ["RunFolder"],
    "stream": ["Experience", "Stream"],
}
"""Where each public name lives; it is fetched when first used, because PyTorch takes seconds to load."""

__all__ = [
    "METHODS",
    "Budget",
    "Composite",
    "ContinualClassifier",
    "ConvNet",
    "Dataset",
    "Exemplars",
    "Experience",
    "Experiment",
    "Images",
    "InputError",
    "Memory",
    "Pixels",
    "RunFolder",
    "Scores",
    "StorageError",
    "Stream",
    "__version__",
    "load",
    "load_memory",
    "run",
    "save_memory",
]


def __getattr__(name: str) -> Any:
    """Fetch a public name."""
    for home, names in HOMES.items():
        if name in names:
            value = getattr(import_module(f"ccmcl.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'ccmcl' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
