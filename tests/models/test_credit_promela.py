"""The credit protocol's Promela model (``credit.pml``), searched whole by SPIN where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from nights import LONG, nightly

MODEL = Path(__file__).parent / "credit.pml"
SPIN, CC = shutil.which("spin"), shutil.which("cc") or shutil.which("gcc")

pytestmark = pytest.mark.skipif(not (SPIN and CC), reason="no SPIN (apt install spin); credit_model.py needs none")

# PLAN: the buffers of producer 0 and of producer 1 for consumer 0, then for consumer 1.  By day one that ends, one
# that does not, and two mutations; the same model in Python (test_credit_model.py) is searched for all of them.
SCENARIOS = [
    "-DPLAN=3,2,0,0",
    pytest.param("-DPLAN=2,1,1,0", marks=nightly),
    pytest.param("-DPLAN=1,1,1,0 -DCANCELS", marks=nightly),
    "-DPLAN=1,1,1,0 -DPRODUCER_DIES",
    pytest.param("-DPLAN=1,1,1,0 -DCONSUMER_DIES", marks=nightly),
]
if LONG:  # two by two: minutes each
    SCENARIOS += [
        "-DPLAN=2,2,0,0 -DCANCELS",
        "-DPLAN=2,2,0,0 -DPRODUCER_DIES",
        "-DPLAN=2,0,2,0 -DCONSUMER_DIES",
        "-DPLAN=2,1,2,0 -DBOUND=3 -DFLOATING=2",
        *(f"-DPLAN=1,1,1,1{what}" for what in ("", " -DCANCELS", " -DPRODUCER_DIES", " -DCONSUMER_DIES")),
    ]


def search(folder: Path, options: str) -> tuple[int, str]:
    """-> (states, the error that SPIN found, or "")."""
    assert SPIN
    assert CC
    subprocess.run([SPIN, *options.split(), "-a", str(MODEL)], cwd=folder, check=True, capture_output=True)
    compile_ = [CC, "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=12000", "-o", "pan", "pan.c"]
    subprocess.run(compile_, cwd=folder, check=True)
    said = subprocess.run(["./pan", "-m100000", "-n"], cwd=folder, check=True, capture_output=True, text=True).stdout
    errors, states = re.search(r"errors: (\d+)", said), re.search(r"(\d+) states, stored", said)
    assert errors is not None, said
    assert states is not None, said
    assert not re.search("error: max search depth|out of memory", said), said
    found = re.search(r"pan:1: (.*)", said)
    assert (errors[1] != "0") == (found is not None), said
    return int(states[1]), found[1] if found else ""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", SCENARIOS)
def test_nothing_forbidden_can_happen(tmp_path: Path, options: str) -> None:
    states, error = search(tmp_path, options)
    assert error == ""
    assert states > 10_000


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("-DPLAN=2,0,0,0 -DWITHOUT=NO_CREDIT_ASKED", "granted"),
        pytest.param("-DPLAN=3,2,0,0 -DWITHOUT=KEEPS_FLOATING", "floating_home", marks=nightly),
        pytest.param("-DPLAN=2,0,0,0 -DWITHOUT=CREDIT_TWICE", "granted", marks=nightly),
        ("-DPLAN=1,1,0,0 -DCONSUMER_DIES -DWITHOUT=NO_WORD_OF_DEATH", "invalid end state"),
        pytest.param("-DPLAN=1,1,0,0 -DCANCELS -DWITHOUT=CANCEL_FORGETS", "ready", marks=nightly),
    ],
)
def test_the_model_finds_what_is_left_out(tmp_path: Path, options: str, error: str) -> None:
    assert error in search(tmp_path, options)[1]
