"""Names that a module exports but imports at first use."""

import importlib

import pytest

from nemo_gym.common.lazy_exports import _type_checking_imports

MODULES = ("nemo_gym.sandbox", "nemo_gym.server_utils", "nemo_gym", "nemo_gym.base_resources_server")


@pytest.mark.parametrize("module", MODULES)
def test_what_is_imported_for_type_checkers_can_be_imported_by_programs(module: str) -> None:
    imported = importlib.import_module(module)
    names = _type_checking_imports(module)
    assert names
    assert all(getattr(imported, name) is not None for name in names)


@pytest.mark.parametrize("module", MODULES)
def test_an_unknown_name_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'unknown'"):
        importlib.import_module(module).unknown  # noqa: B018
