"""Checks shapes and types of every function while tests run, and keeps tests away from the user's files."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

assert not any(name.startswith("ccmcl.") for name in sys.modules), "the import hook comes too late"
_hook = install_import_hook("ccmcl", "typecheck.check")

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have had it ignored
settings.register_profile(
    "ccmcl",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("ccmcl")


@pytest.fixture(autouse=True, scope="session")
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Parsed data sets are kept for one session of tests, not in the user's cache."""
    before = {name: os.environ.get(name) for name in ("CCMCL_CACHE", "CCMCL_DATA", "TORCHINDUCTOR_CACHE_DIR")}
    os.environ["CCMCL_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["CCMCL_DATA"] = str(tmp_path_factory.mktemp("data"))
    if "PYTEST_XDIST_WORKER" in os.environ:  # what one of the processes has compiled is there for the others
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.getbasetemp().parent / "compiled")
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
