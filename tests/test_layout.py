"""The shape of the source: imports point one way, nothing runs what a file says, every name is explained."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ccmcl
from ccmcl import catalogue, methods, nets, planning

SOURCE = Path(__file__).parents[1] / "src" / "ccmcl"
FILES = {path.stem: path for path in sorted(SOURCE.glob("*.py"))}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}
FLOW = [
    "errors",
    "files",
    "locks",
    "catalogue",
    "budget",
    "tensor_files",
    "data",
    "experiment",
    "records",
    "stream",
    "convolution",
    "nets",
    "kinds",
    "memory",
    "objectives",
    "compiling",
    "engine",
    "condense",
    "learn",
    "work",
    "methods",
    "compute",
    "planning",
    "evaluate",
    "store",
    "workers",
    "running",
    "estimate",
    "sweep",
    "runner",
    "local",
    "results",
    "terminal",
    "studies",
    "cli",
]
RUNNING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code", "runpy"}


def imports(tree: ast.Module) -> Iterator[str]:
    """Name the modules of the package that a module imports, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root, _, rest = alias.name.partition(".")
                if root == "ccmcl":
                    yield rest or "__init__"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            root, _, rest = (node.module or "").partition(".")
            if root == "ccmcl" and rest:
                yield rest
            elif root == "ccmcl":
                yield from (alias.name if alias.name in FILES else "__init__" for alias in node.names)


GRAPH = {name: set(imports(tree)) for name, tree in TREES.items()}


def reached(name: str) -> set[str]:
    """Name everything that a module needs, directly or through others."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        new = GRAPH[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_there_is_a_package_to_look_at() -> None:
    assert set(FLOW) <= set(FILES)
    assert GRAPH["memory_file"] == {
        "budget",
        "coding",
        "errors",
        "forms",
        "frequencies",
        "tensor_files",
        "kinds",
        "memory",
    }
    assert GRAPH["errors"] == set()
    assert GRAPH["naive"] == set(), "the reference uses nothing of what is proved against it"
    assert set().union(*GRAPH.values()) <= set(FILES)


def test_imports_make_no_circle() -> None:
    order = list(TopologicalSorter(GRAPH).static_order())
    assert sorted(order) == sorted(FILES)


@pytest.mark.parametrize("name", FLOW)
def test_imports_point_one_way(name: str) -> None:
    later = set(FLOW[FLOW.index(name) + 1 :])
    assert not reached(name) & later


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_module_can_run_what_a_file_says(name: str) -> None:
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & RUNNING
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in RUNNING
            assert not (node.module == "torch" and {"load", "jit", "hub"} & {alias.name for alias in node.names})
    for called, call in calls(TREES[name]):
        assert called not in {"eval", "exec", "compile", "__import__", "torch.load", "torch.jit.load", "torch.hub.load"}
        for keyword in call.keywords:
            if keyword.arg == "allow_pickle":
                assert isinstance(keyword.value, ast.Constant)
                assert keyword.value.value is False
        if called in {"np.load", "numpy.load"}:
            assert "allow_pickle" in {keyword.arg for keyword in call.keywords}


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_public_name_is_explained(name: str) -> None:
    assert name == "_version" or ast.get_docstring(TREES[name])
    for node in TREES[name].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{name}.{node.name}"


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_file_is_too_long_to_read(name: str) -> None:
    assert len(FILES[name].read_text("utf-8").splitlines()) <= 420


@pytest.mark.parametrize("name", sorted(FILES))
def test_importing_a_module_changes_nothing(name: str) -> None:
    for node in TREES[name].body:
        if isinstance(node, ast.Expr) and name != "__main__":
            assert isinstance(node.value, ast.Constant), f"{name} calls {ast.unparse(node)} when it is imported"
    for called, _ in calls(TREES[name]):
        assert called not in {"os.chdir", "torch.manual_seed", "np.random.seed", "random.seed"}


def test_what_only_reads_and_lists_does_not_wait_for_pytorch() -> None:
    program = "import ccmcl.cli, sys; print(sorted({'torch', 'numpy', 'matplotlib', 'PIL'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_in_the_catalogue_are_the_ones_there_are() -> None:
    assert tuple(methods.METHODS) == catalogue.METHODS
    assert tuple(planning.NETWORKS) == catalogue.NETWORKS
    assert tuple(nets.PRECISIONS) == catalogue.PRECISIONS


def test_public_names_can_be_fetched() -> None:
    assert sorted(name for names in ccmcl.HOMES.values() for name in names) == sorted(
        set(ccmcl.__all__) - {"__version__"}
    )
    for name in ccmcl.__all__:
        assert getattr(ccmcl, name) is not None
        assert name in dir(ccmcl)
    assert callable(ccmcl.run)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ccmcl.nothing  # noqa: B018
