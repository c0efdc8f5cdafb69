"""Run model-written code in isolation: no network, no access to the host, limits on all resources. One contract,
several providers; docs/sandbox.md lists what each of them prevents."""

from typing import TYPE_CHECKING

from nemo_gym.common.lazy_exports import lazy_attributes

if TYPE_CHECKING:
    from nemo_gym.sandbox.containers import ApptainerProvider as ApptainerProvider
    from nemo_gym.sandbox.containers import DockerCreateConfig as DockerCreateConfig
    from nemo_gym.sandbox.containers import DockerProvider as DockerProvider
    from nemo_gym.sandbox.contract import ConnectableProvider as ConnectableProvider
    from nemo_gym.sandbox.contract import ExecResult as ExecResult
    from nemo_gym.sandbox.contract import Limits as Limits
    from nemo_gym.sandbox.contract import PythonResult as PythonResult
    from nemo_gym.sandbox.contract import SandboxCreateError as SandboxCreateError
    from nemo_gym.sandbox.contract import SandboxCreateVerificationError as SandboxCreateVerificationError
    from nemo_gym.sandbox.contract import SandboxEndpoint as SandboxEndpoint
    from nemo_gym.sandbox.contract import SandboxError as SandboxError
    from nemo_gym.sandbox.contract import SandboxExecResult as SandboxExecResult
    from nemo_gym.sandbox.contract import SandboxHandle as SandboxHandle
    from nemo_gym.sandbox.contract import SandboxProvider as SandboxProvider
    from nemo_gym.sandbox.contract import SandboxPtyError as SandboxPtyError
    from nemo_gym.sandbox.contract import SandboxResources as SandboxResources
    from nemo_gym.sandbox.contract import SandboxSpec as SandboxSpec
    from nemo_gym.sandbox.contract import SandboxStatus as SandboxStatus
    from nemo_gym.sandbox.contract import SandboxUnavailableError as SandboxUnavailableError
    from nemo_gym.sandbox.contract import SupportsSandboxEndpoint as SupportsSandboxEndpoint
    from nemo_gym.sandbox.contract import rewrite_image as rewrite_image
    from nemo_gym.sandbox.local import SandboxPool as SandboxPool
    from nemo_gym.sandbox.process import SandboxProcess as SandboxProcess
    from nemo_gym.sandbox.registry import AsyncSandbox as AsyncSandbox
    from nemo_gym.sandbox.registry import Sandbox as Sandbox
    from nemo_gym.sandbox.registry import SandboxConfig as SandboxConfig
    from nemo_gym.sandbox.registry import create_provider as create_provider
    from nemo_gym.sandbox.registry import get_provider_class as get_provider_class
    from nemo_gym.sandbox.registry import list_providers as list_providers
    from nemo_gym.sandbox.registry import local_provider as local_provider
    from nemo_gym.sandbox.registry import register_provider as register_provider
    from nemo_gym.sandbox.registry import resolve_provider_config as resolve_provider_config
    from nemo_gym.sandbox.registry import resolve_provider_metadata as resolve_provider_metadata

__getattr__ = lazy_attributes(__name__)
