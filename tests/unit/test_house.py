"""Rules of the house that no reader should have to check by eye."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The path of a record.  A package may import what stands to its right, never to its left.
ORDER = (
    "fastbuf_spark",
    "monitor",
    "event_time",
    "checkpoint",
    "transports",
    "exchange",
    "flow",
    "serializers",
    "memory",
    "_native",
)
FOR_ALL = {"fastbuf.errors", "fastbuf.config", "fastbuf.checks", "fastbuf.fork_safe", "fastbuf.json_frames"}
MOST_LINES = 800  # the rule for readers is 300, 600 at most; this stops what has forgotten it

CODE = sorted(
    path
    for folder in ("fastbuf", "bindings", "benches", "tests")
    for pattern in ("*.py", "*.pyx", "*.pxd", "*.h")
    for path in (ROOT / folder).rglob(pattern)
)
CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+(?P<base>[.\w]+)\s+c?import\s+(?P<names>.+)|c?import\s+(?P<plain>[.\w, ]+))")


def module_of(path: Path) -> str:
    relative = path.relative_to(ROOT / "bindings" if "bindings" in path.parts else ROOT).with_suffix("")
    parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
    return ".".join(parts)


def resolve(importer: Path, base: str) -> str:
    """Absolute name of ``base``, which may be relative (``..errors``)."""
    level = len(base) - len(base.lstrip("."))
    if not level:
        return base
    package = module_of(importer).split(".")
    if importer.stem != "__init__":
        package = package[:-1]
    package = package[: len(package) - (level - 1)]
    return ".".join([*package, *filter(None, [base.lstrip(".")])])


def imports_of(path: Path) -> set[str]:
    """Every module that the file imports or cimports, at any depth, as absolute names."""
    found: set[str] = set()

    def from_import(base: str, names: list[str]) -> None:
        absolute = resolve(path, base)
        if absolute != "fastbuf":
            found.add(absolute)
        found.update(f"{absolute}.{name}" for name in names)

    text = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                from_import("." * node.level + (node.module or ""), [alias.name for alias in node.names])
        return found
    for line in text.splitlines():
        match = CYTHON_IMPORT.match(line)
        if match and match["plain"]:
            found.update(name.split()[0] for name in match["plain"].split(",") if name.strip())
        elif match:
            names = re.sub(r"[()\\]|#.*", "", match["names"]).split(",")
            from_import(match["base"], [name.split()[0] for name in names if name.strip()])
    return found


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] == "fastbuf_spark":
        return "fastbuf_spark"
    if parts[0] == "fastbuf" and len(parts) > 1 and parts[1] in ORDER:
        return parts[1]
    return None


def breaches(path: Path) -> list[str]:
    own = layer_of(module_of(path))
    wrong = []
    for name in sorted(imports_of(path)):
        other = layer_of(name)
        if other is not None and own is not None and ORDER.index(other) < ORDER.index(own):
            wrong.append(f"{own} imports {name}")
        # The root package imports every layer: one that imports it goes round the order.  The binding stands outside.
        if own not in (None, "fastbuf_spark") and name.partition(".")[0] == "fastbuf":
            inner = ".".join(name.split(".")[:2])
            if other is None and inner not in FOR_ALL:
                wrong.append(f"{own} imports {name}")
    return wrong


LAYERED = [p for p in CODE if p.suffix != ".h" and layer_of(module_of(p))]


@pytest.mark.parametrize("path", LAYERED, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    assert breaches(path) == []


def test_the_import_check_sees_a_breach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that finds nothing must be shown to find something."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    folder = tmp_path / "fastbuf" / "memory"
    folder.mkdir(parents=True)
    cases = {
        "a.pyx": "from fastbuf.exchange.input_gate cimport InputGate\n",
        "b.pxd": "from ..flow cimport credits\n",
        "c.py": "def f():\n    from fastbuf import transports\n",
        "d.py": "import fastbuf_spark\n",
        "e.py": "import fastbuf\n",
        "f.py": "from fastbuf import NetworkBufferPool\n",
    }
    for name, text in cases.items():
        (folder / name).write_text(text)
        assert breaches(folder / name), name
    (folder / "fine.pyx").write_text(
        "from fastbuf._native.atomics cimport fb_au32\nfrom fastbuf.errors import PoolTimeout\n"
    )
    assert breaches(folder / "fine.pyx") == []


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )


def test_import_starts_nothing_and_loads_neither_pyarrow_nor_pyspark() -> None:
    done = run_python(
        """
        import os, sys, numpy                      # NumPy may start threads of its own
        def state():
            maps = {line.split()[-1] for line in open("/proc/self/maps") if "memfd" in line}
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), maps
        before = state()
        import fastbuf
        assert state() == before, (before, state())
        assert not {"pyarrow", "pyspark", "pandas"} & set(sys.modules)
        """
    )
    assert done.returncode == 0, done.stderr


NEED_ARROW = {"fastbuf.serializers.schema_arrow"}  # imported by the functions that are given Arrow's types


def test_core_needs_numpy_alone() -> None:
    """With everything but the standard library and NumPy hidden, every core module still imports."""
    modules = sorted(
        {
            module_of(p)
            for p in CODE
            if p.suffix in (".py", ".pyx") and layer_of(module_of(p)) not in (None, "fastbuf_spark")
        }
        - NEED_ARROW
    )
    done = run_python(
        f"""
        import importlib, sys
        class Hide:
            def find_spec(self, name, path=None, target=None):
                root = name.partition(".")[0]
                if root not in sys.stdlib_module_names and root not in ("numpy", "fastbuf"):
                    raise ModuleNotFoundError(f"{{name}} is hidden", name=name)
        sys.meta_path.insert(0, Hide())
        import fastbuf
        for name in {modules!r}:
            importlib.import_module(name)
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


def test_every_package_is_shipped() -> None:
    packages = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {
        module_of(p)
        for p in CODE
        if p.name == "__init__.py" and p.relative_to(ROOT).parts[0] in ("fastbuf", "bindings")
    }
    assert packages == folders


def test_every_extra_that_is_named_is_one() -> None:
    """In a message, a page or a test; and the tests' extra brings what the tests of stores ask for."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = [*CODE, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {each for page in pages for each in re.findall(r"fastbuf\[([a-z0-9,]+)\]'", page.read_text())}
    assert {"s3", "fsspec", "delta"} <= {each for names in named for each in names.split(",")} <= set(extras)
    assert any("s3" in each and "fsspec" in each for each in extras["test"])
    assert {"moto[server]", "hdfs-native"} <= {re.split("[>;=]", each)[0] for each in extras["test"]}


def test_modules_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by these alone: of two, one is not run."""
    names = [p.name for p in CODE if p.relative_to(ROOT).parts[0] == "tests" and p.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_proofs_are_made_where_no_fork_catches_them() -> None:
    """A proof made with `hmac` itself may stop the children that another thread forks meanwhile."""
    made = re.compile(r"\bhmac\.(digest|new)\(")
    code = [p for p in CODE if p.relative_to(ROOT).parts[0] in ("fastbuf", "bindings") and made.search(p.read_text())]
    assert code == [ROOT / "fastbuf" / "fork_safe.py"]


BINDING = [p for p in CODE if "bindings" in p.parts and p.suffix == ".py"]
OPS = re.compile(r"""["']op["']|\bop\b *(==|!=|in\b)""")


def test_messages_are_told_apart_by_their_class_alone() -> None:
    """Of the control connections, whose ops stand in `messages.py`."""
    assert [p.stem for p in BINDING if OPS.search(p.read_text())] == ["messages"]


PRIVATE = re.compile(
    r"[.\"]_(?:j(?:conf|df|rdd|sc|vm|c|sparkSession|schema|rdd_deserializer)|gateway|temp_dir|localProperties|conf\.get"
    r"|active_spark_context|pickled_broadcast_vars|bypass_serializer|is_pipelinable|context_provider|expr)\b"
    r"|^\s*(?:from|import) (?:py4j|pyspark\.(?:cloudpickle|core|util|serializers|worker|logger|java_gateway"
    r"|sql\.(?:conversion|pandas)))\b",
    re.MULTILINE,
)


def test_what_pyspark_does_not_promise_is_used_in_one_module() -> None:
    """But for the class that is a serializer of PySpark's itself."""
    assert [p.stem for p in BINDING if PRIVATE.search(p.read_text())] == ["pyspark_private", "serializer"]


def test_every_module_of_the_spark_binding_is_in_the_map() -> None:
    told = (ROOT / "ARCHITECTURE.md").read_text()
    modules = [p for p in CODE if "bindings" in p.parts and p.suffix == ".py" and p.stem != "__init__"]
    assert len(modules) > 50
    assert [str(p.relative_to(ROOT)) for p in modules if f"`{p.stem}`" not in told] == []


def test_every_extension_that_python_imports_has_a_stub() -> None:
    """What the Python side sees of a ``.pyx`` is typed in a ``.pyi`` beside it."""
    imported = set().union(
        *(imports_of(p) for p in CODE if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in ("fastbuf", "bindings"))
    )
    extensions = [p for p in CODE if p.suffix == ".pyx" and module_of(p) in imported]
    assert extensions
    assert [str(p.relative_to(ROOT)) for p in extensions if not p.with_suffix(".pyi").exists()] == []


# A participle alone does not say what a thing is: name it, as in keys, frame, options, batches, lines, schema.
NOT_NAMES = frozenset(("found", "made", "known", "told", "kept", "held", "spelt", "placed"))
NAMED_SO = {  # by module: the word, and why it stays
    "fastbuf/memory/stats.py": ("held", "a field that users read"),
    "fastbuf/memory/memory_segment.pxd": ("held", "the references of a handle, as users read them of a pool"),
    "fastbuf/memory/memory_segment.pyx": ("held", "as in its map"),
    "fastbuf/memory/local_buffer_pool.pyx": ("held", "the segments of a pool, as users read them"),
    "fastbuf/memory/pool_claims.pyx": ("held", "half of a pool's word, by which its proof calls it"),
    "fastbuf/memory/pool_core.pyx": ("held", "half of a pool's word"),
    "fastbuf/memory/audit.pyx": ("held", "half of a pool's word"),
    "fastbuf/checkpoint/store.py": ("kept", "a keyword that users write, and its default"),
    "bindings/fastbuf_spark/spec.py": ("held", "held rows are a thing of their own"),
    "bindings/fastbuf_spark/driver/rendezvous.py": ("held", "held rows are a thing of their own"),
}
SHIPPED = [p for p in CODE if p.relative_to(ROOT).parts[0] in ("fastbuf", "bindings") and p.suffix != ".h"]
_WORD = rf"_*(?:{'|'.join(sorted(NOT_NAMES))})"
IN_CYTHON = re.compile(
    rf"^\s*(?:cdef|cpdef|def)\s[^=(#]*?\b({_WORD})\s*(?:[=,:#(\[]|$)"  # what is declared
    rf"|^\s*(?:self\.)?({_WORD})\s*(?:[-+*/|&]|//|<<|>>)?=(?!=)"  # what is assigned
    rf"|\bfor\s+(?:\w+\s*,\s*)*({_WORD})\b[\w\s,]*\bin\b",
    re.MULTILINE,
)


def poor_names(path: Path) -> set[str]:
    """The words that are names of variables, arguments, attributes, functions or classes there."""
    text = path.read_text()
    if path.suffix != ".py":
        return {name.strip("_") for names in IN_CYTHON.findall(text) for name in names if name}
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    return {name.strip("_").lower() for name in names} & NOT_NAMES


def test_no_participle_alone_is_a_name() -> None:
    names = {}
    for path in SHIPPED:
        where = str(path.relative_to(ROOT))
        words = poor_names(path) - set(NAMED_SO.get(where, ())[:1])
        if words:
            names[where] = words
    assert names == {}


def test_names_that_are_allowed_are_there() -> None:
    assert [path for path, (word, _) in NAMED_SO.items() if word not in poor_names(ROOT / path)] == []


@pytest.mark.parametrize(
    "line",
    ["found = 1", "self._made = 1", "for known in x: pass", "def told(): pass", "def f(kept): pass", "class Held: pass",
     "[placed for placed in x]", "if (found := f()): pass"],
)  # fmt: skip
def test_the_check_of_names_sees_one(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f"{line}\n")
    (tmp_path / "fine.py").write_text("seen.found(known=1)\nfound_kind = found + self.made\n")
    assert len(poor_names(tmp_path / "a.py")) == 1
    assert poor_names(tmp_path / "fine.py") == set()


@pytest.mark.parametrize(
    "line",
    ["cdef list found", "    cdef uint32_t held = 0", "cdef PyObject *kept[8]", "    self._made = f()", "found += 1",
     "    for k, known in pairs:", "cdef bint told(int x) noexcept nogil:"],
)  # fmt: skip
def test_the_check_of_names_sees_one_in_cython(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.pyx").write_text(f"{line}\n")
    (tmp_path / "fine.pyx").write_text(
        "cdef int found_kind = 0  # is found\nif held == 1 and x.held != 0:\n    f(made=1)\n"
    )
    assert len(poor_names(tmp_path / "a.pyx")) == 1
    assert poor_names(tmp_path / "fine.pyx") == set()


MOST_FUNCTION_LINES, MOST_METHODS = 60, 30
LONGER = {  # functions that are longer, and why
    "fastbuf/monitor/diagnosis.py verdict": "rules in their order: what comes first decides",
    "bindings/fastbuf_spark/driver/estimate.py estimate": "one sum after the other, of the figures above it",
    "bindings/fastbuf_spark/api/sinks.py _write": "checks, in the order in which they are told",
    "bindings/fastbuf_spark/streams/stream.py write_stream": "checks, in the order in which they are told",
    "fastbuf/cli/shuffle.py run": "a command from its options to its last line",
}


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, its docstring left out."""
    first = function.body[0]
    said = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if said else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_functions_and_classes_stay_small() -> None:
    long, wide = {}, {}
    for path in SHIPPED:
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = f"{path.relative_to(ROOT)} {getattr(node, 'name', '')}"
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines_of(node) > MOST_FUNCTION_LINES:
                long[name] = lines_of(node)
            if isinstance(node, ast.ClassDef):
                methods = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
                public = [method for method in methods if not method.name.startswith("_")]
                if len(public) > MOST_METHODS:
                    wide[name] = len(public)
    assert set(long) == set(LONGER), long
    assert wide == {}


def test_no_promises_in_the_code() -> None:
    words = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    found = [
        f"{p.relative_to(ROOT)}:{number}"
        for p in CODE
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert found == []
