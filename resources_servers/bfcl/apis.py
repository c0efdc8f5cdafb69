"""The stateful APIs of the turns: the classes of the wheel, which decide what state and results are.

Their modules run with no other module of the package but the texts of long contexts."""

import copy
import json
import types
from collections.abc import Iterable, Mapping
from typing import Any

from nemo_gym.config.types import PypiPackage
from nemo_gym.data.hubs.wheel_modules import WheelModules

PACKAGE = PypiPackage(
    package="bfcl-eval",
    version="2026.3.23",
    sha256="3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
    size_bytes=1_925_664,
)
MODULES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
LONG_CONTEXT = "long_context"
_FILES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
FUNCTION_DOCS = tuple((name, f"{file}.json") for name, file in _FILES.items())
_STATELESS = frozenset(("MathAPI",))
MAX_DIGITS = 10_000
"""For powers, and for the precision of roots and logarithms, which would take for ever."""


class Apis:
    """Instances of the classes of a row."""

    def __init__(self, names: Iterable[str], config: Mapping[str, Any], *, is_long: bool) -> None:
        self._instances = {name: _instance(name, config, is_long=is_long) for name in names}
        self._methods = {
            name: getattr(instance, name)
            for instance in self._instances.values()
            for name in dir(type(instance))
            if not name.startswith("_") and callable(getattr(instance, name))
        }

    def call(self, name: str, arguments: Iterable[Any] = (), named: Mapping[str, Any] | None = None) -> str:
        """The result of a call as the model sees it, errors included."""
        try:
            if name not in self._methods:
                raise NameError(f"name '{name}' is not defined")
            _check_cost(name, named or {})
            result = self._methods[name](*arguments, **(named or {}))
            return _shown(result)
        except (Exception, RecursionError) as error:
            return f"Error during execution: {error}"

    def state(self) -> dict[str, dict[str, Any]]:
        """The public attributes of each instance."""
        return {
            name: {key: value for key, value in vars(each).items() if not key.startswith("_")}
            for name, each in self._instances.items()
        }


def _shown(result: Any) -> str:
    if type(result) is str:
        return result
    if type(result) is dict:
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def _check_cost(name: str, named: Mapping[str, Any]) -> None:
    """Refuse numbers that would be computed for ever."""
    precision, exponent = named.get("precision"), named.get("exponent")
    too_precise = isinstance(precision, int | float) and abs(precision) > MAX_DIGITS
    if name == "power" and isinstance(exponent, int) and isinstance(named.get("base"), int):
        too_precise = abs(exponent) * int(named["base"]).bit_length() > 3 * MAX_DIGITS
    if too_precise:
        raise OverflowError("The numbers are too large.")


def _instance(name: str, config: Mapping[str, Any], *, is_long: bool) -> Any:
    instance = getattr(api_module(_FILES[name]), name)()
    if name not in _STATELESS:
        instance._load_scenario(copy.deepcopy(config.get(name, {})), long_context=is_long)
    return instance


_modules = WheelModules(
    PACKAGE,
    [f"{MODULES}.{name}" for name in (*_FILES.values(), LONG_CONTEXT)],
    feature="The multi-turn rows of bfcl",
    extra="bfcl",
)


def api_module(name: str) -> types.ModuleType:
    """A module of the wheel."""
    return _modules.module(f"{MODULES}.{name}")
