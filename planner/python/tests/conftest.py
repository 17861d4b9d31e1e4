"""What the tests share."""

import os
import pathlib

import pytest

DATA = pathlib.Path(__file__).parents[2] / "tests" / "data"


@pytest.fixture(scope="session")
def data() -> pathlib.Path:
    """The planner's test data."""
    return DATA


@pytest.fixture(scope="session")
def tool() -> str:
    """The program `allotment`, which the caller of pytest names."""
    return os.environ["ALLOTMENT"]
