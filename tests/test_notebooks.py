"""The notebooks run from start to end in a fresh kernel, and what is stored of them is small, ordered and anonymous.

Running them takes minutes, so that it has to be asked for: python -m pytest -m notebooks
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LIMIT = 120
"""Seconds for one notebook; each takes well below 60 on two idle cores."""

MAX_BYTES = 150_000
PRIVATE = re.compile(r"(?<![\w.:/])/[\w.-]+/[\w.-]+|[A-Z]:\\|site-packages|\d{4}-\d\d-\d\dT\d\d")
"""Absolute paths and timestamps."""

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text_of(output):
    """What an output shows as text; the representation of a picture is none."""
    data = output.get("data", {})
    return "".join(output.get("text", [] if "image/png" in data else data.get("text/plain", [])))


def shown(cell):
    """Pictures and words of a cell's outputs: all but the numbers, which may differ in their last digits."""
    pictures = sum("image/png" in output.get("data", {}) for output in cell["outputs"])
    return pictures, re.findall(r"[A-Za-z]{3,}", "\n".join(map(text_of, cell["outputs"])))


def test_there_are_six():
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06"]


@each_notebook
def test_it_begins_with_what_the_reader_will_be_able_to_do(path):
    first = load(path)["cells"][0]
    text = "".join(first["source"])
    assert first["cell_type"] == "markdown" and text.startswith("# ")
    assert "After this notebook you can" in text and len(text) < 1000


@each_notebook
def test_outputs_are_stored_in_order_and_without_errors(path):
    cells = code_cells(load(path))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(outputs) >= 3
    for output in outputs:
        assert output["output_type"] in ("stream", "display_data", "execute_result")
        assert output.get("name") != "stderr", text_of(output)


@each_notebook
def test_what_is_stored_is_small_and_anonymous(path):
    assert path.stat().st_size < MAX_BYTES
    notebook = load(path)
    assert set(notebook["metadata"]) <= {"kernelspec", "language_info"}
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        texts = [*cell["source"], *map(text_of, cell.get("outputs", []))]
        assert not PRIVATE.search("\n".join(texts))
        assert all(output.get("metadata", {}) == {} for output in cell.get("outputs", []))


def test_the_check_for_paths_can_fail():
    for text in ("in /home/somebody", "'/tmp/x/my_file.py'", r"C:\Users", "2026-01-31T12:00:00"):
        assert PRIVATE.search(text)
    for text in ("https://github.com/a/b", "`jaxdp/bounds`", "(b - a)^2 / (4 n)", "hits 3 / 4"):
        assert not PRIVATE.search(text)


@pytest.mark.notebooks
@pytest.mark.skipif(jax.config.jax_enable_x64, reason="shows the results of 32-bit types")
@each_notebook
def test_it_runs_and_shows_what_is_stored(path, tmp_path, request):
    if "notebooks" not in request.config.getoption("markexpr"):
        pytest.skip("takes minutes: python -m pytest -m notebooks")
    missing = [name for name in ("nbclient", "ipykernel", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (pip install 'jaxdp-privacy[notebooks]')")
    # A data directory, a backend or pytest's options of the caller's would change what is shown.
    callers = ("JAXDP_DATA", "MPLBACKEND", "PYTEST_ADDOPTS")
    environment = {key: value for key, value in os.environ.items() if key not in callers}
    environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}
    made = tmp_path / path.name
    done = subprocess.run(
        [sys.executable, __file__, str(path), str(made)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for stored, fresh in zip(code_cells(load(path)), code_cells(load(made)), strict=True):
        assert shown(fresh) == shown(stored), "".join(stored["source"])


def run(path, made):
    """Executes a notebook in a fresh kernel, in the current directory, and stores the result."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": str(Path.cwd())}}
    )
    client.execute()
    nbformat.write(notebook, made)


if __name__ == "__main__":
    run(*sys.argv[1:])
