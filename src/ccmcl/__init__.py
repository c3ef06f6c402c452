"""Continual learning with a memory that fits in kilobytes.

``ContinualClassifier`` is the everyday interface; ``Experiment`` and ``run`` are for whole data sets.
"""

from ccmcl._version import __version__
from ccmcl.budget import Budget
from ccmcl.classifier import ContinualClassifier
from ccmcl.data import Dataset, Images, load
from ccmcl.errors import InputError, StorageError
from ccmcl.evaluate import Scores
from ccmcl.experiment import Experiment
from ccmcl.memory import Composite, Exemplars, Memory, Pixels
from ccmcl.memory_file import load_memory, save_memory
from ccmcl.methods import METHODS
from ccmcl.nets import ConvNet
from ccmcl.run import run
from ccmcl.store import RunFolder
from ccmcl.stream import Experience, Stream

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
