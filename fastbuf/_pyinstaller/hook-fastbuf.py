"""PyInstaller sees what Python code imports, not what extensions do: name all modules, and the files they read."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules


def _is_of_a_program(name: str) -> bool:
    """The command line, which needs packages of its own, is a program itself."""
    return not name.startswith(("fastbuf.cli", "fastbuf._pyinstaller")) and not name.endswith("._testing")


hiddenimports = collect_submodules("fastbuf", filter=_is_of_a_program)
datas = collect_data_files("fastbuf", includes=["monitor/**/*"], excludes=["**/*.py*"])
