"""Which changes of a patch a grading keeps."""

import pytest

from responses_api_agents.mini_swe_agent.patching import is_put_back


@pytest.mark.parametrize(
    "path",
    [
        *(
            "setup.cfg",
            "sub/setup.cfg",
            ".pytest.ini",
            "pytest.ini",
            "pytest.toml",
            ".pytest.toml",
            "tox.ini",
            "setup.py",
        ),
        *("pyproject.toml", "conftest.py", "src/pkg/conftest.py", "sitecustomize.py", "src/usercustomize/__init__.py"),
        *("x.pth", "src/x.pth", "x.egg-info/entry_points.txt", "src/X.Dist-Info/METADATA", ".gitattributes"),
        *(
            "pkg/__pycache__/m.cpython-311.pyc",
            "m.pyc",
            "tests/__init__.py",
            "tests/data/x.json",
            "tests",
            "pkg/test/x.py",
        ),
        *("test_stack.py", "test_stack.py/x", "pkg/stack_test.py", "pkg/testing/compare.py", "checks/hidden.py"),
    ],
)
def test_what_decides_how_tests_run_is_put_back(path: str) -> None:
    assert is_put_back(path, gold=["pkg/stack.py"], tested=["checks/hidden.py"])


@pytest.mark.parametrize(
    "path",
    [
        *(
            "pkg/stack.py",
            "latest/x.py",
            "contest.py",
            "src/protest/x.py",
            "README.md",
            "docs/setup.cfg.md",
            "pkg/mypytest.ini",
        ),
        "pkg/testing/asserts.py",
    ],
)
def test_the_rest_of_a_patch_is_kept(path: str) -> None:
    """Also a file in a folder of tests that the gold patch changes: it is the subject of the issue."""
    assert not is_put_back(path, gold=["pkg/testing/asserts.py"], tested=["checks/hidden.py"])
