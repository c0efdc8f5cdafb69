"""What `ng_doctor` finds and advises."""

from pathlib import Path

import pytest

from nemo_gym.sandbox.contract import SandboxUnavailableError
from nemo_gym.sandbox.registry import Machine, assess, best_provider, bubblewrap, namespace_fix
from nemo_gym.sandbox.seccomp import MACHINES, seccomp_filter
from tests.commands import ng


@pytest.mark.parametrize(
    ("machine", "fix"),
    [
        (Machine(max_namespaces=0), "user.max_user_namespaces"),
        (Machine(clone_allowed=False), "kernel.unprivileged_userns_clone=1"),
        (Machine(apparmor_restricts=True), "apparmor_restrict_unprivileged_userns=0"),
        (Machine(in_container=True, apparmor_restricts=True), "seccomp=unconfined"),
        (Machine(), "user namespaces"),
    ],
)
def test_the_fix_fits_the_machine(machine: Machine, fix: str) -> None:
    assert fix in namespace_fix(machine)


def test_what_works_is_never_without_confinement() -> None:
    found = list(assess())
    assert [one.name for one in found] == ["bubblewrap", "landlock", "docker", "apptainer"]
    assert all(one.fix for one in found if not one.works)
    assert all(one.level != "none" for one in found)
    working = [one for one in found if one.works]
    if working:
        assert best_provider() == working[0]
    else:
        with pytest.raises(SandboxUnavailableError, match="unconfined"):
            best_provider()


def test_there_is_a_filter_for_both_architectures() -> None:
    assert (
        len({seccomp_filter(in_namespaces=inside, machine=name) for inside in (False, True) for name in MACHINES}) == 4
    )
    with pytest.raises(SandboxUnavailableError, match="riscv64"):
        seccomp_filter(in_namespaces=True, machine="riscv64")


def test_the_doctor_says_which_level_holds(tmp_path: Path) -> None:
    done = ng("ng_doctor", cwd=tmp_path)
    if bubblewrap().works:
        assert done.returncode == 0
        assert "'bubblewrap' here, level full" in done.stdout
    assert "docker" in done.stdout
