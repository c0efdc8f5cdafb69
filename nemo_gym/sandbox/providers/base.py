"""The contract of sandboxes, under the path of the public NeMo Gym."""

from nemo_gym.sandbox.contract import ConnectableProvider as ConnectableProvider
from nemo_gym.sandbox.contract import SandboxCreateError as SandboxCreateError
from nemo_gym.sandbox.contract import SandboxCreateVerificationError as SandboxCreateVerificationError
from nemo_gym.sandbox.contract import SandboxEndpoint as SandboxEndpoint
from nemo_gym.sandbox.contract import SandboxExecResult as SandboxExecResult
from nemo_gym.sandbox.contract import SandboxHandle as SandboxHandle
from nemo_gym.sandbox.contract import SandboxProvider as SandboxProvider
from nemo_gym.sandbox.contract import SandboxPtyError as SandboxPtyError
from nemo_gym.sandbox.contract import SandboxResources as SandboxResources
from nemo_gym.sandbox.contract import SandboxSpec as SandboxSpec
from nemo_gym.sandbox.contract import SandboxStatus as SandboxStatus
from nemo_gym.sandbox.contract import SupportsSandboxEndpoint as SupportsSandboxEndpoint
