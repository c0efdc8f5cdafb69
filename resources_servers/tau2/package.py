"""The package that has the data of tau2."""

import gzip
import tomllib
from functools import cache
from typing import Any

import orjson

from nemo_gym.config.types import PypiPackage
from nemo_gym.data.hubs.pypi import package_files
from resources_servers.tau2.goal import Domain

PACKAGE = PypiPackage(
    package="inspect-evals",
    version="0.26.0",
    sha256="b76d15813182807da141a0f06bb6f18a5f82d1f06291ec2633bb84cdf661f8d0",
    size_bytes=21_409_407,
)
DOMAINS = "inspect_evals/tau2/data/domains"


@cache
def tables_of(domain: Domain) -> dict[str, Any]:
    """The database of a domain, for all rollouts: nobody may change it."""
    if domain != "telecom":
        found: dict[str, Any] = orjson.loads(
            gzip.decompress(package_files(PACKAGE).read(f"{DOMAINS}/{domain}/db.json.gz"))
        )
        return found
    tables = tomllib.loads(package_files(PACKAGE).read(f"{DOMAINS}/telecom/db.toml").decode())
    for customer in tables["customers"]:
        for name in ("line_ids", "bill_ids"):
            customer.setdefault(name, [])
    return tables
