from typing import Any, Dict, Union

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.sandbox import AsyncSandbox, SandboxResources, SandboxSpec
from nemo_gym.sandbox.registry import resolve_provider_config, resolve_provider_metadata


class ShellTaskConfig(BaseResourcesServerConfig):
    sandbox_provider: Union[str, Dict[str, Any]]
    sandbox_spec: Dict[str, Any] = {}


class ShellTaskVerifyRequest(BaseVerifyRequest):
    expected_stdout: str


class ShellTaskVerifyResponse(BaseVerifyResponse):
    return_code: int
    found: str
    metadata: Dict[str, Any]


class ShellTask(SimpleResourcesServer):
    config: ShellTaskConfig

    async def verify(self, body: ShellTaskVerifyRequest) -> ShellTaskVerifyResponse:
        named = self.server_client.global_config_dict
        provider = resolve_provider_config(self.config.sandbox_provider, named)
        metadata = resolve_provider_metadata(self.config.sandbox_provider, named)
        resources = SandboxResources.from_mapping(self.config.sandbox_spec.get("resources", {}))
        spec = SandboxSpec(
            files={"run.sh": body.response.output_text}, metadata=metadata, resources=resources, ttl_s=60
        )
        async with AsyncSandbox(provider) as sandbox:
            await sandbox.start(spec)
            result = await sandbox.exec("sh run.sh", timeout_s=20)
        found = (result.stdout or "").strip()
        return ShellTaskVerifyResponse(
            **body.model_dump(),
            reward=float(found == body.expected_stdout),
            return_code=result.return_code,
            found=found,
            metadata=dict(metadata),
        )


if __name__ == "__main__":
    ShellTask.run_webserver()
