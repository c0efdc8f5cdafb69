"""Containers of attempts: an image of SWE-bench in docker or singularity, or a toy repository in the local sandbox."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.sandbox import AsyncSandbox, SandboxError, SandboxSpec
from responses_api_agents.mini_swe_agent.grading import Instance
from responses_api_agents.mini_swe_agent.patching import WORKDIR
from responses_api_agents.mini_swe_agent.toys import BASE_COMMIT, BY_REPO

Env = Literal["docker", "singularity", "sandbox"]

CONDA = "source /opt/miniconda3/bin/activate testbed\n"
"""The start of every command in an image of SWE-bench."""
IMAGES = {
    "gym": ("xingyaoww/sweb.eval.x86_64.", "_s_"),
    "verified": ("swebench/sweb.eval.x86_64.", "_1776_"),
}
_GIT = {
    "GIT_AUTHOR_NAME": "nobody",
    "GIT_AUTHOR_EMAIL": "nobody@localhost",
    "GIT_COMMITTER_NAME": "nobody",
    "GIT_COMMITTER_EMAIL": "nobody@localhost",
    # The work folder belongs to the sandbox, the repository in it to its user.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "PAGER": "cat",
}
_COMMIT = f"git init -q && git add -A && git commit -q -m base && git tag {BASE_COMMIT}"


def image_name(instance: Instance) -> str:
    """The image of an instance on Docker Hub."""
    if instance.subset not in IMAGES:
        expected = " or ".join(IMAGES)
        raise RolloutError("input", f"There are no images for the subset '{instance.subset}'; expected {expected}.")
    prefix, separator = IMAGES[instance.subset]
    return f"{prefix}{instance.instance_id.replace('__', separator)}:latest".lower()


def command_prefix(env: Env) -> str:
    return "" if env == "sandbox" else CONDA


def provider_and_spec(
    env: Env, instance: Instance, *, template: str | None, local: dict[str, Any]
) -> tuple[dict[str, Any], SandboxSpec]:
    """The provider and the sandbox for an instance."""
    if env == "docker":
        return {"docker": {"exec": {"exec_shell": "/bin/bash"}}}, SandboxSpec(
            image=image_name(instance), workdir=WORKDIR, env=_GIT
        )
    if env == "singularity":
        if template is None:
            raise ConfigError("env: singularity needs cache_dir_template, the path of the images with {instance_id}.")
        image = template.format(instance_id=instance.instance_id)
        options = {"apptainer": {"exec": {"exec_shell": "/bin/bash"}}}
        return options, SandboxSpec(image=image, workdir=WORKDIR, env=_GIT)
    return local, SandboxSpec(workdir=WORKDIR, env=_GIT, files=_toy_files(instance))


def _toy_files(instance: Instance) -> dict[str, str]:
    if instance.repo not in BY_REPO:
        raise ConfigError(
            f"env: sandbox has the repositories {', '.join(BY_REPO)}; the row asks for '{instance.repo}'. "
            "Use docker or singularity for others."
        )
    return {f"{WORKDIR}/{path}": text for path, text in BY_REPO[instance.repo].files.items()}


@asynccontextmanager
async def opened(
    env: Env, instance: Instance, *, template: str | None, local: dict[str, Any]
) -> AsyncIterator[AsyncSandbox]:
    """A fresh copy of the repository at its base commit. It is gone after the block."""
    provider, spec = provider_and_spec(env, instance, template=template, local=local)
    async with AsyncSandbox(provider, spec) as box:
        await box.start()
        if env == "sandbox":
            made = await box.exec(_COMMIT, timeout_s=60)
            if made.return_code:
                raise SandboxError(f"The repository {instance.repo} could not be made: {made.stderr}")
        yield box
