"""What the README files show is run: each ```python block, in order, one namespace and one process a file.

A block with `>>>` prompts is a doctest (NORMALIZE_WHITESPACE, ELLIPSIS); any other block is executed.
"""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
READMES = sorted(
    path
    for path in (ROOT / "README.md", *ROOT.glob("[!.]*/**/README.md"))
    if not any(part.startswith(".") or part == "venv" for part in path.relative_to(ROOT).parts)
)


def blocks(path, language):
    """The (line, text) of each fenced block of a language; line is that of the opening fence."""
    text = path.read_text(encoding="utf-8")
    fences = [match for match in FENCE.finditer(text) if match[1] == language]
    return [(text.count("\n", 0, match.start()) + 1, match[2]) for match in fences]


def run_file(path):
    """Executes the Python blocks of one file; tracebacks name the file's own lines."""
    namespace = {"__name__": "__main__"}
    for line, text in blocks(path, "python"):
        if re.search(r"^>>> ", text, re.MULTILINE):
            test = doctest.DocTestParser().get_doctest(text, namespace, path.name, str(path), line)
            test.globs = namespace
            runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
            runner.run(test, clear_globs=False)
            if runner.failures:
                raise SystemExit(f"{path.name}:{line}: the output differs")
        else:
            exec(compile("\n" * line + text, str(path), "exec"), namespace)


def test_readme_starts_with_the_two_commands():
    commands = [text for _, text in blocks(ROOT / "README.md", "bash")[:2]]
    assert [len(text.splitlines()) for text in commands] == [1, 1], "each is one command on one line"
    assert "-m jaxdp audit" in commands[0]
    assert "-m pytest" in commands[1]


@pytest.mark.skipif(jax.config.jax_enable_x64, reason="shows the results of 32-bit types")
@pytest.mark.parametrize("path", READMES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_blocks_run(path, tmp_path):
    if not blocks(path, "python"):
        pytest.skip("no Python block")
    command = [sys.executable, "-W", "error", __file__, str(path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    run_file(Path(sys.argv[1]))
