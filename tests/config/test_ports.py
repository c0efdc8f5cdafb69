import contextlib
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.checks import server_blocks
from nemo_gym.config.loading import (
    NoOpenPortError,
    complete_head_server,
    default_host,
    fill_hosts_and_ports,
    find_open_port,
)
from nemo_gym.config.types import GlobalSettings
from nemo_gym.errors import ConfigError
from tests.commands import TEST_PROCESS

QUIET_PORTS = range(20_500, 21_000)[50 * TEST_PROCESS :][:40]
"""This test process's own: beyond those that servers choose, below those that tests give to head servers."""


def free_stretch(length: int) -> int:
    """The first of so many ports in a row that nobody uses."""
    while True:
        low = random.choice(QUIET_PORTS)
        with contextlib.suppress(OSError), contextlib.ExitStack() as bound:
            for port in range(low, low + length):
                bound.enter_context(socket.socket()).bind(("", port))
            return low


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port in use, those beside it not."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_stretch(3) + 1))
        listener.listen()
        yield listener.getsockname()[1]


def servers(**blocks: dict[str, Any]) -> DictConfig:
    return OmegaConf.create(
        {name: {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **b}}} for name, b in blocks.items()}
    )


def block(config: DictConfig, name: str) -> Any:
    return config[name].responses_api_agents.simple_agent


def fill(config: DictConfig, settings: GlobalSettings | None = None, *, fill_ports: bool = True) -> list[int]:
    head = complete_head_server(config, "127.0.0.1")
    found = server_blocks(config).servers
    return fill_hosts_and_ports(
        config, found, head, host="127.0.0.1", settings=settings or GlobalSettings(), fill_ports=fill_ports
    )


def test_an_open_port_is_in_the_range_and_not_disallowed() -> None:
    low = free_stretch(9)
    for _ in range(20):
        port = find_open_port([low, low + 1], port_range_low=low, port_range_high=low + 8)
        assert port in range(low + 2, low + 9)


def test_a_port_in_use_is_passed_over(busy_port: int) -> None:
    low, high = busy_port - 1, busy_port + 1
    assert find_open_port(port_range_low=low, port_range_high=high) in (low, high)


def test_a_range_without_an_open_port_is_an_error_and_no_endless_loop(busy_port: int) -> None:
    with pytest.raises(NoOpenPortError, match=r"open port in .* after 1 attempts") as caught:
        find_open_port([busy_port + 1], port_range_low=busy_port, port_range_high=busy_port + 1)
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(ConfigError, match="after 0 attempts"):
        find_open_port([5000], port_range_low=5000, port_range_high=5000)


def test_the_number_of_attempts_is_limited() -> None:
    with pytest.raises(RuntimeError, match="after 0 attempts"):
        find_open_port(max_retries=0)


def test_hosts_and_ports_are_filled_in_only_where_they_are_missing() -> None:
    config = servers(a={}, b={"host": "0.0.0.0", "port": 9000}, c={"host": "", "port": 0}, d={"port": "${p}"})
    config.p = 9001
    ports = fill(config)
    assert ports == [11000, block(config, "a").port, 9000, block(config, "c").port, 9001]
    assert len(set(ports)) == 5
    assert [block(config, name).host for name in "abcd"] == ["127.0.0.1", "0.0.0.0", "127.0.0.1", "127.0.0.1"]
    assert OmegaConf.to_container(block(config, "d"))["port"] == "${p}"  # type: ignore[index, call-overload]
    assert 10001 <= block(config, "a").port <= 20000


def test_a_chosen_port_avoids_the_head_server_and_explicit_ports_that_come_later() -> None:
    low = free_stretch(4)
    settings = GlobalSettings(port_range_low=low, port_range_high=low + 3)
    for _ in range(10):
        config = servers(a={}, b={"port": low + 3}, c={})
        config.head_server = {"port": low + 2}
        assert sorted(fill(config, settings)) == [low, low + 1, low + 2, low + 3]


def test_ports_can_be_left_to_whoever_starts_the_servers() -> None:
    config = servers(a={}, b={"port": 9000})
    assert fill(config, fill_ports=False) == [11000, 9000]
    assert "port" not in block(config, "a")
    assert block(config, "a").host == "127.0.0.1"


def test_a_block_that_is_an_interpolation_of_another_gets_its_own_port() -> None:
    config = servers(a={"n": "${number}"})
    config.update({"number": 1, "b": "${a}", "c": {"responses_api_agents": "${a.responses_api_agents}"}})
    assert len(set(fill(config))) == 4
    config.number = 2
    assert block(config, "c").n == 2


def test_one_port_on_two_hosts_is_fine() -> None:
    config = servers(a={"port": 9000, "host": "10.0.0.1"}, b={"port": 9000, "host": "10.0.0.2"})
    assert fill(config) == [11000, 9000, 9000]


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ({}, {"host": "10.0.0.1", "port": 11000}),
        ({"head_server": None}, {"host": "10.0.0.1", "port": 11000}),
        ({"head_server": {}}, {"host": "10.0.0.1", "port": 11000}),
        ({"head_server": {"port": 12000}}, {"host": "10.0.0.1", "port": 12000}),
        ({"head_server": {"host": "0.0.0.0"}}, {"host": "0.0.0.0", "port": 11000}),
        ({"head_server": {"host": "h", "port": 5, "x": 1}}, {"host": "h", "port": 5, "x": 1}),
    ],
)
def test_a_head_server_is_completed(given: dict[str, Any], completed: dict[str, Any]) -> None:
    config = OmegaConf.create(given)
    head = complete_head_server(config, "10.0.0.1")
    assert config.head_server == completed
    assert (head.host, head.port) == (completed["host"], completed["port"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, r"head_server of the configuration is 5, expected \{host: <address>, port: <number>\}"),
        ({"port": "x"}, "The head_server is not valid:\n- port: Input should be a valid integer"),
        ({"port": 70000}, "found 70000"),
        ("${unset}", "Interpolation key 'unset' not found: head_server is"),
    ],
)
def test_a_head_server_that_makes_no_sense_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        complete_head_server(OmegaConf.create({"head_server": given}), "127.0.0.1")


def test_the_default_host_is_loopback_or_what_the_settings_say() -> None:
    assert default_host(GlobalSettings()) == "127.0.0.1"
    assert default_host(GlobalSettings(default_host="10.0.0.1")) == "10.0.0.1"


def test_the_absolute_address_wins_over_the_default_host() -> None:
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        pytest.skip("this machine's name has no address")
    assert default_host(GlobalSettings(use_absolute_ip=True, default_host="10.0.0.1")) == address
